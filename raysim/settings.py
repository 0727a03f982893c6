"""Flags, TOML files and presets become frozen dataclasses here, by one path and with one kind of message.

A setting is a dataclass field made with `setting(default, help)`. Each source is a layer (where, values); later
layers win. Values are strings from the command line, typed from TOML and presets; both go through `convert`.
"""

import dataclasses
import difflib
import math
import tomllib
import types
import typing
from pathlib import Path

from raysim.errors import InputError

Layer = tuple[str, dict[str, object]]  # where it comes from ("command line", a file, a preset), key -> value


def setting(default, help: str, minimum=None, above=None, maximum=None):
    """A dataclass field that is also a flag: its default, one line of help, and the range it must be in."""
    return dataclasses.field(
        default=default, metadata={"help": help, "minimum": minimum, "above": above, "maximum": maximum}
    )


def flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def nearest(name: str, known, otherwise: str = "") -> str:
    """`; did you mean 'x'?`, or what else to say where nothing is near."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else otherwise


def convert(field: dataclasses.Field, value, where: str, key: str):
    """The value as the field's type and in its range, or an InputError that names the source and the flag."""
    kinds = [field.type] if not isinstance(field.type, types.UnionType) else list(typing.get_args(field.type))
    optional = type(None) in kinds
    kind = next(k for k in kinds if k is not type(None))
    text = str(value).strip()
    if optional and (value is None or text.lower() == "none"):
        return None
    bad = InputError(f"{where}: {flag(key)} must be {_describe(kind, optional)}, not {text!r}")
    if typing.get_origin(kind) is typing.Literal:
        if text not in typing.get_args(kind):
            raise bad
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise bad
        return text.lower() == "true"
    if kind is str:
        if not isinstance(value, str):
            raise bad
        return value
    if isinstance(value, bool) or (kind is int and isinstance(value, float)):
        raise bad
    try:
        number = kind(text)
    except ValueError:
        raise bad from None
    if not math.isfinite(number):
        raise bad
    limits = field.metadata
    for broken, rule in (
        (limits["minimum"] is not None and number < limits["minimum"], f"at least {limits['minimum']}"),
        (limits["above"] is not None and number <= limits["above"], f"above {limits['above']}"),
        (limits["maximum"] is not None and number > limits["maximum"], f"at most {limits['maximum']}"),
    ):
        if broken:
            raise InputError(f"{where}: {flag(key)} must be {rule}, not {text}")
    return number


def _describe(kind, optional: bool) -> str:
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    named = words.get(kind) or "one of " + ", ".join(typing.get_args(kind))
    return named + (" or none" if optional else "")


def from_command_line(arguments: list[str]) -> dict[str, object]:
    """`--key value`, `--key=value`, `--switch`, `--no-switch` as a dict; keys with underscores."""
    values: dict[str, object] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or len(word) == 2:
            raise InputError(f"command line: '{word}' is not a flag; settings are written --name value")
        key, equals, value = word[2:].partition("=")
        if not equals:
            # A value may be negative (-0.5) but never starts with two dashes.
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        if value == "true" and key.startswith("no-"):
            key, value = key[3:], "false"
        values[key.replace("-", "_")] = value
    return values


def from_toml(path: str) -> dict[str, object]:
    """A TOML file: settings at the top level, a part's own in a table named after it."""
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config {path}: {error.strerror}; give the path of a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--config {path}: not valid TOML: {' '.join(str(error).split())}") from None
    values: dict[str, object] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            values |= {f"{key}.{inner}".replace("-", "_"): v for inner, v in value.items()}
        else:
            values[key.replace("-", "_")] = value
    return values


def as_dict(config) -> dict[str, object]:
    """The settings of a dataclass as plain values."""
    return {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if "help" in f.metadata}


def markdown_table(cls, prefix: str = "") -> str:
    """The settings as a table: flag, default, meaning."""
    rows = ["| flag | default | |", "|---|---|---|"]
    for field in dataclasses.fields(cls):
        if "help" in field.metadata:
            default = "" if field.default is None else f"`{field.default}`"
            rows.append(
                f"| `{flag(prefix + field.name)}` | {default} | {field.metadata['help'].replace('|', '&#124;')} |"
            )
    return "\n".join(rows)


def help_lines(cls, prefix: str = "") -> list[str]:
    """One line of help per setting."""
    lines = []
    for field in dataclasses.fields(cls):
        if "help" not in field.metadata:
            continue
        default = "" if field.default is None else f" (default {field.default})"
        lines.append(f"  {flag(prefix + field.name):28} {field.metadata['help']}{default}")
    return lines
