"""The settings of a dataclass as text: lines of `--help`, and the tables of docs/settings.md."""

from dataclasses import Field
from typing import Any

from raysim.settings import choices_of, flag, setting_fields

# The topics of a run's settings, in their order in RunConfig: the first setting of each -> its heading.
TOPICS = {
    "method": "What is trained, on which data",
    "clients": "Clients, and how the data is dealt to them",
    "rounds": "Training",
    "eval_every": "Evaluation and measures",
    "actors": "Where and how it runs",
    "metrics": "Watching",
    "on_client_error": "Failures",
    "checkpoint_every": "Run directory and checkpoints",
}

Fields = dict[str, Field[Any]]


def by_topic(cls: type) -> dict[str, Fields]:
    """The settings of a run under the headings of their topics."""
    topics: dict[str, Fields] = {}
    heading = ""
    for name, field in setting_fields(cls).items():
        heading = TOPICS.get(name, heading)
        topics.setdefault(heading, {})[name] = field
    return topics


def help_lines(fields: Fields, prefix: str = "") -> list[str]:
    """One line of help per setting."""
    lines = []
    for name, field in fields.items():
        default = "" if field.default is None else f" (default {field.default})"
        lines.append(f"  {flag(prefix + name):28} {_about(field)}{default}")
    return lines


def markdown_table(fields: Fields, prefix: str = "") -> str:
    """The settings as a Markdown table: flag, default, meaning."""
    rows = ["| flag | default | |", "|---|---|---|"]
    for name, field in fields.items():
        default = "" if field.default is None else f"`{field.default}`"
        rows.append(f"| `{flag(prefix + name)}` | {default} | {_about(field).replace('|', '&#124;')} |")
    return "\n".join(rows)


def _about(field: Field[Any]) -> str:
    """The setting's help, with the words it accepts."""
    help, choices = field.metadata["help"], choices_of(field)
    return f"{help}; one of {', '.join(choices)}" if choices else str(help)
