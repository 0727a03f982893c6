"""What the papers' presets and sweeps resolve to is what it was when settings.json was written."""

import json

import pytest

from raysim.papers import presets, sweeps

from . import RECORD, defaults, of_preset, of_sweep

RECORDED = json.loads(RECORD.read_text())
MEANT = "if this change is meant, `python -m tests.papers` records it"


def recorded(kind: str) -> dict[str, dict]:
    """The lines of the record that begin with these words, by what follows them."""
    return {key.removeprefix(kind): value for key, value in RECORDED.items() if key.startswith(kind)}


def test_the_record_has_every_preset_and_every_sweep():
    assert recorded("preset ").keys() == presets().keys()
    assert {key.partition(":")[0] for key in recorded("sweep ")} == sweeps().keys()


@pytest.mark.parametrize("name", presets())
def test_a_preset_resolves_to_what_is_recorded(name):
    assert of_preset(name) == RECORDED[f"preset {name}"], MEANT


@pytest.mark.parametrize("name", sweeps())
def test_the_rows_of_a_sweep_resolve_to_what_is_recorded(name):
    found, known = of_sweep(name), recorded(f"sweep {name}: ")
    assert found == known, MEANT
    assert list(found) == list(known)  # the order of a table's rows


def test_what_they_leave_to_the_defaults_has_the_recorded_defaults():
    """A setting that is no more has none, and a new one decided nothing."""
    found, known = defaults(), RECORDED["defaults"]
    assert len(known) > 100
    assert {key: found[key] for key in known if key in found} == {key: known[key] for key in known if key in found}
