"""The settings of a dataclass as text: lines of `--help`, and the tables of docs/settings.md."""

from dataclasses import Field
from typing import Any

from raysim.settings import flag, setting_fields


def help_lines(cls: type, prefix: str = "") -> list[str]:
    """One line of help per setting."""
    lines = []
    for name, field in setting_fields(cls).items():
        default = "" if field.default is None else f" (default {field.default})"
        lines.append(f"  {flag(prefix + name):28} {_about(field)}{default}")
    return lines


def markdown_table(cls: type, prefix: str = "") -> str:
    """The settings as a Markdown table: flag, default, meaning."""
    rows = ["| flag | default | |", "|---|---|---|"]
    for name, field in setting_fields(cls).items():
        default = "" if field.default is None else f"`{field.default}`"
        rows.append(f"| `{flag(prefix + name)}` | {default} | {_about(field).replace('|', '&#124;')} |")
    return "\n".join(rows)


def _about(field: Field[Any]) -> str:
    """The setting's help, with the choices that were found at run time."""
    help, choices = field.metadata["help"], field.metadata["choices"]
    return f"{help}: {', '.join(choices())}" if choices else str(help)
