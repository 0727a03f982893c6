"""What the hooks promise, seen from a part that uses them all (tests/parts/everything.py)."""

import numpy as np
import pytest

from raysim.engine.failures import RunFailure
from raysim.engine.in_process import InProcess
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
    assert (
        comparable(simulate(method="fedavg+tests.parts.sleepy", **{"sleepy.most": 0.0}))[0] == comparable(simulate())[0]
    )
    both = simulate(method=f"tests.parts.sleepy+{EVERYTHING}", active=10, rounds=3, **{"sleepy.most": 0.0})
    assert comparable(both) == comparable(result)


def test_two_parts_that_decide_the_same_thing_are_refused():
    with pytest.raises(InputError, match="committee and rival both decide 'route'"):
        part_classes("tests.parts.committee+tests.parts.rival")
    with pytest.raises(InputError, match="is there twice"):
        part_classes("fedprox+fedprox")


class Watching(InProcess):
    """Keeps the order of the server's calls and the passes, and whose models are evaluated."""

    def __init__(self):
        super().__init__()
        self.order, self.returned = [], {}

    def call_server(self, method, *arguments, returns=1):
        self.order.append(method.__name__)
        self.returned[method.__name__] = super().call_server(method, *arguments, returns=returns)
        return self.returned[method.__name__]

    def run(self, work):
        self.order.append(work.name)
        if work.name == "evaluate":
            self.evaluated = next(
                name for name in ("aggregate", "update") if self.returned.get(name) is work.broadcast.weights
            )
        return super().run(work)


@pytest.mark.parametrize(
    ("settings", "whose"),
    [
        ({"method": "scaffold"}, "aggregate"),
        ({"method": "fedpa", "fedpa.gen_steps": 2}, "aggregate"),
        ({"method": EVERYTHING}, "update"),
        ({"method": f"scaffold+{EVERYTHING}"}, "update"),
        ({"feature_kl": 50}, "aggregate"),
    ],
    ids=str,
)
def test_models_that_no_update_changes_are_evaluated_while_the_server_updates(settings, whose):
    runner = Watching()
    simulate(runner=runner, rounds=1, privacy=0, **settings)
    after = runner.order[runner.order.index("aggregate") :]
    assert after[:4] == ["aggregate", "update", "evaluate", "take_news"]
    assert runner.evaluated == whose


def test_an_update_that_changes_models_and_says_it_does_not_is_found_out(monkeypatch):
    (cls,) = part_classes(EVERYTHING).values()
    monkeypatch.setattr(cls, "updates_models", False)
    with pytest.raises(
        RunFailure,
        match=r"`update` of everything failed in round 1: it changed `server.weights`.*updates_models = False",
    ):
        simulate(method=EVERYTHING, rounds=1)
