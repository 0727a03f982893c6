"""A single setting: its declaration, and the values it accepts."""

from dataclasses import dataclass
from typing import Literal

import pytest

from raysim.errors import InputError
from raysim.settings import as_dict, convert, flag, is_switch, nearest, setting, setting_fields


@dataclass(frozen=True)
class Example:
    count: int = setting(3, "a number", minimum=1, maximum=9)
    rate: float | None = setting(None, "a rate", above=0)
    kind: Literal["a", "b"] = setting("a", "a kind")
    found: str = setting("x", "one that is found", choices=lambda: ["x", "y"])
    name: str = setting("", "a name", decides_result=False)
    on: bool = setting(False, "a switch")
    weight: float | Literal["auto"] = setting(1.0, "a number or a word", minimum=0)
    hidden: int = 0


FIELDS = setting_fields(Example)


def test_fields_made_by_setting_are_settings():
    assert [*FIELDS] == [*as_dict(Example())] == ["count", "rate", "kind", "found", "name", "on", "weight"]
    assert [name for name, field in FIELDS.items() if is_switch(field)] == ["on"]
    assert [name for name, field in FIELDS.items() if not field.metadata["decides_result"]] == ["name"]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("count", "5", 5), ("count", 5, 5), ("rate", "1e-3", 1e-3), ("rate", 1, 1.0), ("rate", "none", None),
        ("rate", None, None), ("kind", "b", "b"), ("found", "y", "y"), ("name", " x ", " x "), ("on", "True", True),
        ("on", False, False), ("weight", "auto", "auto"), ("weight", "2", 2.0), ("weight", 0, 0.0),
    ],
)  # fmt: skip
def test_values_are_converted(key, value, expected):
    assert convert(FIELDS[key], value, "here", key) == expected


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("count", "x", "here: --count must be a whole number, not 'x'"),
        ("count", 1.5, "here: --count must be a whole number, not '1.5'"),
        ("count", True, "here: --count must be a whole number, not 'True'"),
        ("count", "0", "here: --count must be at least 1, not 0"),
        ("count", "10", "here: --count must be at most 9, not 10"),
        ("rate", "0", "here: --rate must be above 0, not 0"),
        ("rate", "inf", "here: --rate must be a number or none, not 'inf'"),
        ("kind", "c", "here: --kind must be one of a, b, not 'c'"),
        ("found", "z", "here: --found must be one of x, y, not 'z'"),
        ("name", 3, "here: --name must be text, not '3'"),
        ("on", "yes", "here: --on must be true or false, not 'yes'"),
        ("weight", "often", "here: --weight must be a number or auto, not 'often'"),
        ("weight", "-1", "here: --weight must be at least 0, not -1"),
    ],
)
def test_wrong_values_are_one_line(key, value, message):
    with pytest.raises(InputError) as caught:
        convert(FIELDS[key], value, "here", key)
    assert str(caught.value) == message


def test_names_for_people():
    assert flag("classes_per_client") == "--classes-per-client"
    assert nearest("fedprx", ["fedavg", "fedprox"]) == "; did you mean 'fedprox'?"
    assert nearest("zzz", ["fedavg"], "; see the list") == "; see the list"
