"""What a setting is: a dataclass field that is also a flag, a line of a TOML file and a value in a preset.

`setting(default, help)` declares one. Its values are strings on the command line and typed in TOML files and presets;
`convert` reads both.
"""

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

from raysim.errors import InputError

WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}

# The limits of a setting that names none. No real value comes near them, and whatever is computed from a value within
# them still fits: into 64 bits, into a float, into the name of a file.
LARGEST_WHOLE = 10**9
LARGEST_NUMBER = 1e9  # either way
LONGEST_TEXT = 4000  # characters: a path may have 4,096 bytes
LONGEST_NAME = 200  # bytes between slashes or commas: a file's name may have 255, and some names get an ending


class Given(str):
    """The name of an object that was given in Python in place of a setting's text; the object is its `value`.

    `source` is a digest of the object's source, found where it was given: another process may not have the source.
    """

    value: Any
    source: str | None

    def __new__(cls, name: str, value: Any, source: str | None = None) -> "Given":
        given = super().__new__(cls, name)
        given.value, given.source = value, source
        return given

    def __reduce__(self) -> tuple[Any, ...]:
        return Given, (str(self), self.value, self.source)


def setting(
    default: Any,
    help: str,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    *,
    choices: Callable[[], Iterable[str]] | None = None,
    decides_result: bool = True,
    own: bool = False,
) -> Any:
    """A dataclass field that is also a flag: its default, one line of help, and the values it accepts.

    Without a maximum, LARGEST_WHOLE or LARGEST_NUMBER is the limit. `choices` gives the accepted words where they are
    found at run time; otherwise annotate the field with a Literal.
    `own=True` marks a setting that takes an object of the user's: `MODULE:NAME`, or in Python the object itself.
    `decides_result=False` marks a setting that changes where or how a run is done, but not its result.
    """
    limits = {"minimum": minimum, "above": above, "maximum": maximum}
    metadata = {"help": help, "choices": choices, "decides_result": decides_result, "own": own, **limits}
    return dataclasses.field(default=default, metadata=metadata)


def setting_fields(cls: Any) -> dict[str, dataclasses.Field[Any]]:
    """The fields of a dataclass that are settings, by name."""
    return {field.name: field for field in dataclasses.fields(cls) if "help" in field.metadata}


def as_dict(config: Any) -> dict[str, object]:
    """The settings of a dataclass as plain values."""
    return {name: getattr(config, name) for name in setting_fields(config)}


def flag(key: str) -> str:
    """A setting's key as it is written on the command line.

    >>> flag("batch_size")
    '--batch-size'
    """
    return "--" + key.replace("_", "-")


def nearest(name: str, known: Iterable[str], otherwise: str = "", prefix: str = "", similar: float = 0.6) -> str:
    """`; did you mean 'x'?`, or `otherwise` if no known name is similar; `prefix` is put before what was meant."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=similar)
    return f"; did you mean '{prefix}{close[0]}'?" if close else otherwise


def is_switch(field: dataclasses.Field[Any]) -> bool:
    """Whether the setting is true or false, so that its flag needs no value."""
    return field.type is bool


def choices_of(field: dataclasses.Field[Any]) -> tuple[str, ...]:
    """The words that the setting accepts; empty if it takes any of its type."""
    kind, _ = _kind(field)
    if typing.get_origin(kind) is typing.Literal:
        return typing.get_args(kind)
    find = field.metadata["choices"]
    return tuple(find()) if find else ()


def convert(field: dataclasses.Field[Any], value: object, where: str, key: str) -> Any:
    """The value in the field's type and range; an InputError names its source (`where`) and the flag."""
    kind, optional = _kind(field)
    if isinstance(value, Given):
        if not field.metadata["own"]:
            raise InputError(f"{where}: {flag(key)} takes no object; give {WORDS.get(kind, 'one of its words')}")
        return value
    text = _text(value).strip()
    if optional and (value is None or text.lower() == "none"):
        return None
    choices, words = choices_of(field), _words(field)
    expected = ("one of " + ", ".join(choices) if choices else WORDS[kind]) + "".join(f" or {word}" for word in words)
    expected += " or none" if optional else ""
    bad = InputError(f"{where}: {flag(key)} must be {expected}, not {_shown(text)}")
    if text in words:
        return text
    if choices and not (field.metadata["own"] and ":" in text):
        if text not in choices:
            raise bad
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise bad
        return text.lower() == "true"
    if kind is str:
        if not isinstance(value, str):
            raise bad
        if fault := _faulty_text(value):
            raise InputError(f"{where}: {flag(key)} {_shown(value)} {fault}")
        return value
    if isinstance(value, bool) or (kind is int and isinstance(value, float)):
        raise bad
    try:
        number = kind(text)
    except ValueError:
        raise bad from None
    if not text.isascii() or number != number or number in (math.inf, -math.inf):
        raise bad
    if rule := _broken_limit(field, number):
        raise InputError(f"{where}: {flag(key)} must be {rule}, not {_shown(text)[1:-1]}")
    return number


def _text(value: object) -> str:
    try:
        return str(value)
    except (ValueError, RecursionError):  # a number of more digits than Python writes; lists in lists in lists
        return "…"


def _shown(text: str) -> str:
    """The text in quotes, as much of it as a message can hold."""
    return repr(text if len(text) <= 80 else f"{text[:50]}…{text[-20:]}")


def _faulty_text(text: str) -> str | None:
    """What is wrong with a text, in words: it could not be a path, or could not be printed."""
    if any(ord(c) < 32 or 0xD800 <= ord(c) < 0xE000 or ord(c) == 127 for c in text):
        return "has a character that cannot be written; remove it"
    longest = max(len(name.encode()) for name in re.split("[/,]", text))
    if len(text) > LONGEST_TEXT or longest > LONGEST_NAME:
        return f"is too long: names have at most {LONGEST_NAME} bytes and paths {LONGEST_TEXT} characters; shorten it"
    return None


def _kind(field: dataclasses.Field[Any]) -> tuple[Any, bool]:
    """The field's type without None and without words beside it, and whether None is allowed."""
    kinds = _alternatives(field)
    return next(kind for kind in kinds if kind is not type(None)), type(None) in kinds


def _words(field: dataclasses.Field[Any]) -> tuple[str, ...]:
    """The words that are accepted in place of a number, as in `float | Literal["auto"]`."""
    _, *others = _alternatives(field)
    return tuple(word for kind in others for word in typing.get_args(kind))


def _alternatives(field: dataclasses.Field[Any]) -> list[Any]:
    """The types that the field's type joins by |, or the one that it is."""
    joined = typing.get_origin(field.type) in (types.UnionType, typing.Union)
    return list(typing.get_args(field.type)) if joined else [field.type]


def _broken_limit(field: dataclasses.Field[Any], number: float) -> str | None:
    """The limit that the number exceeds, in words."""
    minimum, above, maximum = (field.metadata[name] for name in ("minimum", "above", "maximum"))
    if maximum is None:
        maximum = LARGEST_NUMBER if isinstance(number, float) else LARGEST_WHOLE
    if minimum is None and above is None:
        minimum = -maximum
    if minimum is not None and number < minimum:
        return f"at least {minimum}"
    if above is not None and number <= above:
        return f"above {above}"
    if maximum is not None and number > maximum:
        return f"at most {maximum:,}" if maximum >= 10**4 else f"at most {maximum}"
    return None
