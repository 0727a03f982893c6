"""FedDyn against its algorithm written out in float64, and what it is for: agreement of what clients look for."""

import numpy as np
import pytest
import torch

from raysim.engine.in_process import InProcess
from raysim.methods.feddyn import FedDyn
from raysim.models import build
from raysim.models.flat import FlatModel
from tests.methods.by_hand import computed, simulated
from tests.simulate import simulate


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("active", [2, 1])
def test_two_clients_by_the_algorithm(active, weighting):
    """The paper's, whose clients count alike; by samples, h is weighted as the model is."""
    alpha = 0.3
    gradients, h, ends = [0.0, 0.0], 0.0, {}

    def after(k, end, start):
        gradients[k] = gradients[k] - alpha * (end - start)
        ends[k] = end

    def step(start, mean, cohort):
        nonlocal h
        if weighting == "uniform":
            mean = sum(ends[k] for k in cohort) / len(cohort)
        h = h - alpha * len(cohort) / 2 * (mean - start)
        return mean - h / alpha

    want = computed(step, lambda k, w, start: alpha * (w - start) - gradients[k], after, active)
    got, state = simulated("feddyn", active=active, weighting=weighting, **{"feddyn.alpha": alpha})
    np.testing.assert_allclose(got, want, atol=3e-6)
    np.testing.assert_allclose(state["h"], h, atol=2e-6)


def test_one_parameter_by_hand():
    """Two clients with losses (w − 1)² / 2 and 3(w + 1)² / 2, solved exactly: the fixed point is their sum's, −1/2.

    FedAvg with the same exact local solutions would stay at 0, the mean of 1 and −1.
    """
    alpha, w, h, part = 0.5, 0.0, 0.0, FedDyn(alpha=0.5)
    gradients, centres, weights = np.zeros(2), np.array([1.0, -1.0]), np.array([1.0, 3.0])
    server = type("S", (), {"state": {"feddyn": {}}, "device": torch.device("cpu"), "averaged_clients": 2})()
    server.config = type("C", (), {"clients": 2})()
    ours = 0.0
    for _ in range(60):
        ends = (weights * centres + gradients + alpha * w) / (weights + alpha)
        gradients = gradients - alpha * (ends - w)
        arrays = (np.array([value], np.float32) for value in (ours, ends.mean()))
        ours = part.aggregate(server, *arrays).item()
        h -= alpha * (ends - w).mean()
        w = ends.mean() - h / alpha
        assert ours == pytest.approx(w, abs=1e-5)
    assert w == pytest.approx(-0.5, abs=1e-4)


def test_parameters_that_stay_at_the_clients_have_no_linear_term():
    runner = InProcess()
    simulate(runner=runner, method="feddyn+fedbn", model="fedpa-cnn", evaluation="clients", rounds=2)
    layout = FlatModel(build("fedpa-cnn", (1, 8, 8), 5, seed=3), torch.device("cpu"))
    h = runner.server.state["feddyn"]["h"]
    for name in layout.parameter_names:
        personal = name.startswith(("extractor.1.", "extractor.4."))
        assert layout.view(h, name).any().item() != personal, name


def test_a_client_that_was_skipped_does_not_count():
    """Client 3 fails in round 2 and is left out: h moves by the nine that trained."""
    seen = []

    def watched(part, server, before, mean, original=FedDyn.aggregate):
        seen.append(server.averaged_clients)
        return original(part, server, before, mean)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FedDyn, "aggregate", watched)
        simulate(
            method="feddyn+tests.parts.doomed", active=10, rounds=2, on_client_error="skip", client_retries=0,
            **{"doomed.how": "raises"},
        )  # fmt: skip
    assert seen == [10, 9]
