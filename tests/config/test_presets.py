"""The presets are settings that resolve."""

import pytest

from raysim.config import PRESETS

from .words import from_words


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_resolves_and_a_flag_wins_over_it(name):
    assert from_words("--preset", name, "--rounds", "2").rounds == 2
    preset, settings = PRESETS[name].settings, from_words("--preset", name).settings()
    for part in {key.partition(".")[0] for key in preset.keys() - settings}:  # one to compare methods by has theirs too
        settings = from_words("--preset", name, "--method", part).settings() | settings
    assert all(settings[key] == value for key, value in preset.items())
