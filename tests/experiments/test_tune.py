"""Ray Tune's spaces and ASHA as raysim uses them."""

import sys

import pytest

from raysim.errors import InputError
from raysim.rng import stream

pytest.importorskip("pandas")

from raysim.experiments import tune


def drawn(text, count=200):
    draw, space = stream(0, "test"), tune.space(text, "key")
    return [tune.draw(space, draw) for _ in range(count)]


def test_the_kinds_of_spaces():
    assert all(0 <= value <= 2 for value in drawn("uniform:0,2"))
    small = [value < 1e-2 for value in drawn("loguniform:1e-4,1")]
    assert 60 < sum(small) < 140  # half of the logarithmic range
    assert {*drawn("int:1,3")} == {1, 2, 3}
    assert {*drawn("choice:sgd,adam")} == {"sgd", "adam"}
    assert all(isinstance(value, int) and 1 <= value <= 100 for value in drawn("logint:1,100"))


def test_a_number_is_drawn_as_it_is_printed():
    assert all(value == float(f"{value:.4g}") for value in drawn("loguniform:1e-6,1"))


@pytest.mark.parametrize(
    "text", ["", "0,1", "normal:0,1", "uniform:", "uniform:1", "uniform:0,1,2", "int:0.5,2", "int:a,b"]
)
def test_what_is_no_space_is_one_line(text):
    with pytest.raises(InputError, match="is no space to draw from; write key=KIND:VALUES, as in uniform:0,1, "):
        tune.space(text, "key")


@pytest.mark.parametrize("text", ["uniform:1,1", "uniform:2,1", "uniform:0,inf", "loguniform:0,1", "logint:0,3"])
def test_bounds_that_make_no_sense_are_one_line(text):
    with pytest.raises(InputError, match="the first value must be below the second, and above 0 for log"):
        tune.space(text, "key")


def test_without_tune_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.tune", None)
    with pytest.raises(InputError, match=r"^search needs Ray Tune: pip install 'raysim\[search\]'"):
        tune.space("uniform:0,1", "key")


def test_asha_ends_what_is_below_the_best_third_at_a_rung():
    """Rungs after 2, 6 and 18 rounds; of four trials at one rung the third and fourth are below the cutoff."""
    asha = tune.Asha(rounds=20, grace=2, reduction=3)
    assert not any(asha.ends(name, 1, accuracy) for name, accuracy in (("a", 0.1), ("b", 0.9)))  # no rung yet
    assert not asha.ends("a", 2, 0.5)
    assert not asha.ends("b", 2, 0.6)
    assert asha.ends("c", 2, 0.4)
    assert not asha.ends("b", 5, 0.1)  # between two rungs
    assert not asha.ends("b", 6, 0.7)
    assert asha.ends("a", 6, 0.1)
