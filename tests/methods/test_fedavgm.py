"""FedAvgM against its two lines, and FedAvg's hash where there is no momentum."""

import numpy as np
import pytest

from raysim.methods.fedavgm import FedAvgM
from tests.methods.by_hand import computed, simulated
from tests.methods.common.test_server_optimizer import moved
from tests.simulate import comparable, simulate


def test_two_rounds_worked_out_by_hand():
    """Δ = 1, then 0.5: v = 1, then 0.5·1 + 0.5 = 1; each moves by 2v."""
    part = FedAvgM(lr=2.0, momentum=0.5)
    assert moved(part, [(0.0, 1.0), (2.0, 2.5)]) == [2.0, 4.0]


@pytest.mark.parametrize("active", [2, 1])
def test_two_clients_by_the_algorithm(active):
    v = 0.0

    def step(start, mean, cohort):
        nonlocal v
        v = 0.5 * v + (mean - start)
        return start + 0.7 * v

    got, state = simulated("fedavgm", active=active, **{"fedavgm.lr": 0.7, "fedavgm.momentum": 0.5})
    np.testing.assert_allclose(got, computed(step, active=active), atol=2e-6)
    np.testing.assert_allclose(state["0"]["v"], v, atol=2e-6)


def test_without_momentum_it_is_fedavg_to_the_last_bit():
    plain = {"fedavgm.lr": 1.0, "fedavgm.momentum": 0.0}
    assert simulate(method="fedavgm", **plain).model_sha256 == simulate().model_sha256
    ours = comparable(simulate(method="fedavgm+fedprox", model="fedpa-cnn", **plain))
    theirs = comparable(simulate(method="fedprox", model="fedpa-cnn"))
    assert (ours[0], ours[2]) == (theirs[0], theirs[2])


def test_the_models_of_an_ensemble_have_momenta_of_their_own():
    """One model of two trained in turns: its momentum is that of the rounds in which it was trained."""
    part = FedAvgM(lr=1.0, momentum=0.5)
    assert moved(part, [(0.0, 1.0), (0.0, 1.0)], models=[0, 1]) == [1.0, 1.0]
    assert moved(part, [(0.0, 1.0), (0.0, 1.0)], models=[1, 1]) == [1.0, 1.5]
    result = simulate(method="fedensemble+fedavgm", **{"fedensemble.mode": "models", "fedensemble.models": 2})
    assert len(result.models) == 2
