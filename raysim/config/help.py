"""The settings of a dataclass as text: lines of `--help`, and the tables of docs/settings.md."""

from dataclasses import Field
from typing import Any, NamedTuple

from raysim.settings import choices_of, flag, setting_fields

Fields = dict[str, Field[Any]]


class Topic(NamedTuple):
    """A group of settings: the first of them in RunConfig, where the next topic's first one ends it."""

    first: str
    heading: str


# By the word that `raysim run --help` takes, in their order in RunConfig.
TOPICS = {
    "data": Topic("method", "What is trained, on which data"),
    "clients": Topic("clients", "Clients, and how the data is dealt to them"),
    "training": Topic("rounds", "Training"),
    "evaluation": Topic("eval_every", "Evaluation and measures"),
    "gpu": Topic("actors", "Actors and GPUs: where and how it runs"),
    "watch": Topic("metrics", "Watching"),
    "failures": Topic("on_client_error", "Failures"),
    "files": Topic("checkpoint_every", "Run directory and checkpoints"),
}

# The settings that most people need, which `raysim run --help` shows.
ESSENTIAL = (
    "method", "dataset", "data", "model", "clients", "active", "partition", "beta", "rounds", "local_epochs", "lr",
    "batch_size", "seed", "actors", "in_process", "out",
)  # fmt: skip


def by_topic(cls: type) -> dict[str, Fields]:
    """Return the settings of a run by the words of their topics."""
    topics: dict[str, Fields] = {}
    words = {topic.first: word for word, topic in TOPICS.items()}
    word = ""
    for name, field in setting_fields(cls).items():
        word = words.get(name, word)
        topics.setdefault(word, {})[name] = field
    return topics


def essential(cls: type) -> Fields:
    """Return the settings that most people need, in the order of ESSENTIAL."""
    fields = setting_fields(cls)
    return {name: fields[name] for name in ESSENTIAL}


def help_lines(fields: Fields, prefix: str = "") -> list[str]:
    """Return one line of help per setting."""
    lines = []
    width = max((len(flag(prefix + name)) for name in fields), default=0)
    for name, field in fields.items():
        default = "" if field.default is None else f" (default {field.default})"
        lines.append(f"  {flag(prefix + name):{width}}  {_about(field)}{default}")
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
