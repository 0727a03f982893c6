"""Where settings come from: the command line, TOML files, presets and run directories; they resolve to one RunConfig.

Each source is a layer (where, values); later layers win. All values take the same path and get the same messages.
"""

import tomllib
from dataclasses import Field, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from raysim import methods
from raysim.config.run_config import RunConfig, check
from raysim.errors import InputError
from raysim.methods.base import Part
from raysim.papers import presets
from raysim.settings import Given, convert, flag, is_switch, nearest, setting_fields

Layer = tuple[str, dict[str, object]]  # where it comes from ("command line", a file, a preset), key -> value
Fields = dict[str, Field[Any]]  # key -> setting; a part's keys begin with its prefix, as in fedprox.mu

# Of each pair a run has one: giving it in a later layer takes back the other of an earlier layer.
EITHER_OR = (("local_epochs", "local_steps"), ("train_size", "fraction"), ("actors", "actor_per_client"),
             ("actors", "actors_per_gpu"), ("actor_per_client", "actors_per_gpu"))  # fmt: skip


COMMAND_LINE, CALL = "command line", "this call"  # where settings are given: in a shell, or in Python

LARGEST_TOML = 2**20  # bytes; every setting there is takes a hundredth


@dataclass(frozen=True)
class _Known:
    """The settings of a run with this method: its own, and those of the method's parts by their prefix."""

    method: str
    parts: dict[str, type[Part]]
    fields: Fields

    @classmethod
    def of(cls, method: str) -> "_Known":
        parts, fields = methods.part_classes(method), setting_fields(RunConfig)
        for prefix, part in parts.items():
            fields |= {f"{prefix}.{name}": field for name, field in setting_fields(part).items()}
        return cls(method, parts, fields)


class Switch(StrEnum):
    """The value of a flag without one, such as `--download` or `--no-download`; only bool settings accept it."""

    ON = "true"
    OFF = "false"


def from_command_line(arguments: list[str]) -> dict[str, object]:
    """`--key value`, `--key=value`, `--switch` and `--no-switch` as a dict; keys are written with underscores.

    A flag without a value gets a Switch. `resolve`, which knows the settings' types, refuses it if a value is needed.

    >>> from_command_line(["--batch-size", "5", "--no-metrics"])
    {'batch_size': '5', 'metrics': <Switch.OFF: 'false'>}
    """
    values: dict[str, object] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or len(word) == 2:
            raise InputError(f"command line: '{word}' is not a flag; settings are written --name value")
        key, equals, text = word[2:].partition("=")
        value: str = text
        if not equals:
            # A value may be negative (-0.5) but never starts with two dashes.
            value = rest.pop(0) if rest and not rest[0].startswith("--") else Switch.ON
        if value == Switch.ON and key.startswith("no-"):
            key, value = key[3:], Switch.OFF
        values[key.replace("-", "_")] = value
    return values


def take(flags: dict[str, object], key: str) -> str | None:
    """Remove a flag that is not a setting, such as --preset, and return its value; None if it was not given."""
    value = flags.pop(key, None)
    if isinstance(value, Switch):
        raise _without_value(key, value, {})
    return None if value is None else str(value)


def from_toml(path: str) -> dict[str, object]:
    """A TOML file: settings at the top level, a part's own in a table named after it."""
    try:
        content = tomllib.loads(_read_text(path))
    except OSError as error:
        raise InputError(f"--config {path}: {error.strerror}; give the path of a TOML file") from None
    except (ValueError, RecursionError) as error:  # of the encoding, of TOML, of a number's length, of a path with \0
        raise InputError(f"--config {path}: not valid TOML: {error}; correct it") from None
    values: dict[str, object] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            values |= {f"{key}.{inner}".replace("-", "_"): v for inner, v in value.items()}
        else:
            values[key.replace("-", "_")] = value
    return values


def _check_tables(where: str, values: dict[str, object]) -> None:
    """Raise an InputError if a table is wrong, also that of a method which is not the run's: it may be one day."""
    for key, value in values.items():
        name, _, own = key.rpartition(".")
        if name in methods.ALIASES:
            raise InputError(
                f"{where}: [{name}] has no settings of its own; write them into [{methods.ALIASES[name][0]}]"
            )
        if name in methods.names():
            fields = {} if name == "fedavg" else setting_fields(methods.part_class(name))
            if own not in fields:
                raise _unknown(where, key, {f"{name}.{each}": field for each, field in fields.items()})
            convert(fields[own], value, where, key)


def _read_text(path: str) -> str:
    with Path(path).open("rb") as file:
        content = file.read(LARGEST_TOML + 1)  # and no more: it may be any file, or a device that never ends
    if len(content) > LARGEST_TOML:
        raise ValueError(f"more than {LARGEST_TOML:,} bytes")
    return content.decode()


def from_record(recorded: dict[str, object], where: str, method: object = None) -> dict[str, object]:
    """Return the settings that a run recorded in its config.json, if they are all those that there are.

    Another version of raysim has others, and the result could depend on them. `method` is the same method as it was
    given in Python, whose parts cannot be found by their names.
    """
    name = str(recorded.get("method", RunConfig.method))
    fields = _Known.of(method if isinstance(method, Given) and method == name else name).fields
    if differing := recorded.keys() ^ fields.keys():
        which = (
            f"unknown setting {flag(min(differing))}" if min(differing) in recorded else f"no {flag(min(differing))}"
        )
        raise InputError(f"{where}: {which}; another version of raysim wrote it: use that one")
    return recorded


def load_layers(given: dict[str, object], defaults: dict[str, object], where: str = COMMAND_LINE) -> list[Layer]:
    """The layers of one call, first to last: the job file's defaults, --preset, --config, and what was given `where`.

    The defaults may name a preset too, on which they stand.
    """
    first, flags = dict(defaults), dict(given)
    layers: list[Layer] = [*_preset(first), ("job", first), *_preset(flags)]
    if (path := take(flags, "config")) is not None:
        layers.append((path, from_toml(path)))
        _check_tables(*layers[-1])
    return [*layers, (where, flags)]


def _preset(values: dict[str, object]) -> list[Layer]:
    """Remove `preset` from these values; returns the layer it stands for, if it was there."""
    if (name := take(values, "preset")) is None:
        return []
    if name not in presets():
        raise InputError(f"--preset: unknown preset '{name}'{nearest(name, presets(), '; see `raysim presets`')}")
    return [(f"preset {name}", presets()[name].settings)]


def resolve(layers: list[Layer]) -> RunConfig:
    """One RunConfig from the layers, later ones winning; an InputError names the layer that is wrong.

    Every layer is checked as a whole, so a mistake in a file is reported even if a flag overrides it.
    """
    method, layers = _expand_methods(layers)
    known = _Known.of(method)
    merged: dict[str, object] = {}
    for where, given in layers:
        values = _read(given, where, known)
        for first, second in EITHER_OR:
            if values.get(first) not in (None, False) and values.get(second) not in (None, False):
                raise InputError(f"{where}: give {flag(first)} or {flag(second)}, not both")
            if first in values or second in values:
                merged = {key: value for key, value in merged.items() if key not in (first, second)}
        merged |= values
    parts = tuple(
        cls(**{key.removeprefix(f"{prefix}."): v for key, v in merged.items() if key.startswith(f"{prefix}.")})
        for prefix, cls in known.parts.items()
    )
    own: dict[str, Any] = {key: value for key, value in merged.items() if "." not in key}
    return check(RunConfig(**own, parts=parts))


def _expand_methods(layers: list[Layer]) -> tuple[str, list[Layer]]:
    """The method of the last layer that gives one; and the layers, with aliases replaced by what they stand for."""
    field = setting_fields(RunConfig)["method"]
    method: str = RunConfig.method
    expanded: list[Layer] = []
    for where, values in layers:
        if "method" in values:
            if isinstance(values["method"], Switch):
                raise _without_value("method", values["method"], setting_fields(RunConfig))
            method, implied = methods.expand(convert(field, values["method"], where, "method"))
            values = implied | values | {"method": method}
        expanded.append((where, values))
    return method, expanded


def _read(given: dict[str, object], where: str, known: _Known) -> dict[str, object]:
    """The settings of one layer in their types, without those of parts that the method does not have."""
    values = {}
    for key, value in given.items():
        part = key.rpartition(".")[0]
        if key in known.fields:
            if isinstance(value, Switch) and not is_switch(known.fields[key]):
                raise _without_value(key, value, known.fields)
            values[key] = convert(known.fields[key], value, where, key)
        elif part not in methods.names() or part in known.parts:
            raise _unknown(where, f"no_{key}" if value is Switch.OFF else key, known.fields)
        elif where in (COMMAND_LINE, CALL):
            # In a preset they do nothing if a later --method leaves their part out; a flag is a mistake.
            raise InputError(f"{where}: {flag(key)} belongs to {part}, which is not in --method {known.method}")
    return values


def _without_value(key: str, value: Switch, fields: Fields) -> InputError:
    if value is Switch.OFF:
        return _unknown("command line", f"no_{key}", fields)
    return InputError(f"command line: {flag(key)} needs a value; write {flag(key)} VALUE")


def _unknown(where: str, key: str, fields: Fields) -> InputError:
    known = (flag(name).removeprefix("--") for name in [*fields, "preset", "config"])
    hint = nearest(flag(key).removeprefix("--"), known, "; see `raysim run --help`", prefix="--")
    return InputError(f"{where}: unknown setting {flag(key)}{hint}")
