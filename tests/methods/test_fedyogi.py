"""FedYogi against numbers worked out by hand, and against its algorithm in float64."""

import numpy as np
import pytest
import torch

from raysim.methods.fedyogi import FedYogi
from tests.methods.by_hand import computed, simulated
from tests.methods.common.test_server_optimizer import moved


def test_two_rounds_worked_out_by_hand():
    """τ = 1, so v starts at 1. Δ = 3: m = 1.5, v = 1 + 0.25·9 = 3.25 since 9 > 1.

    Then Δ = −1: m = 0.25, v = 3.25 − 0.25·1 = 3, since 1 < 3.25.
    """
    part = FedYogi(lr=1.0, beta1=0.5, beta2=0.75, tau=1.0)
    expected = [1.5 / (3.25**0.5 + 1), 0.25 / (3**0.5 + 1)]
    assert moved(part, [(0.0, 3.0), (0.0, -1.0)]) == pytest.approx(expected)


@pytest.mark.parametrize("active", [2, 1])
def test_two_clients_by_the_algorithm(active):
    m, v = 0.0, 0.1**2

    def step(start, mean, cohort):
        nonlocal m, v
        m = 0.6 * m + 0.4 * (mean - start)
        v = v - 0.2 * (mean - start) ** 2 * torch.sign(v - (mean - start) ** 2)
        return start + 0.05 * m / (v**0.5 + 0.1)

    settings = {"fedyogi.lr": 0.05, "fedyogi.beta1": 0.6, "fedyogi.beta2": 0.8, "fedyogi.tau": 0.1}
    got, state = simulated("fedyogi", active=active, **settings)
    np.testing.assert_allclose(got, computed(step, active=active), atol=3e-6)
    np.testing.assert_allclose(state["0"]["m"], m, atol=2e-6)
    np.testing.assert_allclose(state["0"]["v"], v, atol=2e-6)
