"""FedAdam against numbers worked out by hand, and against its algorithm in float64."""

import pytest

from raysim.methods.fedadam import FedAdam
from tests.methods.by_hand import check_adaptive
from tests.methods.common.test_server_optimizer import moved


def test_two_rounds_worked_out_by_hand():
    """τ = 1, so v starts at 1. Δ = 3: m = 1.5, v = 0.75 + 0.25·9 = 3, x = 1.5/(√3 + 1).

    Then Δ = −1: m = 0.25, v = 2.25 + 0.25 = 2.5.
    """
    part = FedAdam(lr=1.0, beta1=0.5, beta2=0.75, tau=1.0)
    expected = [1.5 / (3**0.5 + 1), 0.25 / (2.5**0.5 + 1)]
    assert moved(part, [(0.0, 3.0), (0.0, -1.0)]) == pytest.approx(expected)


@pytest.mark.parametrize("active", [2, 1])
def test_two_clients_by_the_algorithm(active):
    check_adaptive("fedadam", lambda v, squared: 0.8 * v + 0.2 * squared, active, beta2=0.8)
