"""What the hooks promise, seen from a part that uses them all (tests/parts/everything.py)."""

import numpy as np
import pytest

from raysim.errors import InputError
from raysim.methods import part_classes
from tests.simulate import comparable, simulate

EVERYTHING = "tests.parts.everything"


@pytest.fixture(scope="module")
def result():
    return simulate(method=EVERYTHING, active=10, rounds=3)


def test_terms_are_reported_by_name_and_cross_entropy_by_itself(result):
    assert result.history[-1]["terms"].keys() == {"everything"}
    assert result.history[-1]["terms"]["everything"] > 0


def test_a_personal_parameter_keeps_the_servers_value_but_for_its_update():
    from raysim.models import build

    initial = build("mlp", (1, 8, 8), 5, seed=3).head.bias.detach().numpy()
    head_bias = simulate(method=EVERYTHING, rounds=1).models[0]["head.bias"]
    # `update` adds noise of 1e-4; training would have moved it a hundred times further.
    assert np.abs(head_bias - initial).max() < 1e-3
    assert np.abs(simulate(rounds=1).models[0]["head.bias"] - initial).max() > 1e-2


def test_exchanges_count_into_the_bytes():
    quiet, busy = simulate(method=EVERYTHING, rounds=3).history[-1], simulate(method=EVERYTHING, rounds=3).history[0]
    assert busy["bytes_down"] > quiet["bytes_down"]  # round 1 sends the model to all clients once more


def test_the_size_of_a_group_is_part_of_the_configuration_only():
    """Features computed for 1 or 5 clients at once agree to rounding; the hash may differ, so a setting decides it."""
    one = simulate(method=EVERYTHING, **{"everything.group": 1}).models[0]
    five = simulate(method=EVERYTHING, **{"everything.group": 5}).models[0]
    for name in one:
        np.testing.assert_allclose(one[name], five[name], rtol=1e-4, atol=1e-6)


def test_a_part_that_does_nothing_leaves_the_hash_and_the_others_draws_alone(result):
    assert comparable(simulate(method="fedavg+tests.parts.doomed"))[0] == comparable(simulate())[0]
    both = simulate(method=f"tests.parts.doomed+{EVERYTHING}", active=10, rounds=3)
    assert comparable(both) == comparable(result)


def test_two_parts_that_decide_the_same_thing_are_refused():
    with pytest.raises(InputError, match="committee and rival both decide 'route'"):
        part_classes("tests.parts.committee+tests.parts.rival")
    with pytest.raises(InputError, match="is there twice"):
        part_classes("fedprox+fedprox")
