"""FedYogi against numbers worked out by hand, and against its algorithm in float64."""

import pytest
import torch

from raysim.methods.fedyogi import FedYogi
from tests.methods.by_hand import check_adaptive
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
    check_adaptive("fedyogi", lambda v, squared: v - 0.2 * squared * torch.sign(v - squared), active, beta2=0.8)
