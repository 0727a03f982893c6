import pytest
import torch

from raysim.methods.fedprox import FedProx
from tests.simulate import simulate


def test_value_and_gradient_by_hand():
    """μ/2·‖w − w_t‖² at w = (1, 2), w_t = (0.5, -1): value μ/2·(0.25 + 9), gradient μ·(w − w_t)."""
    weights = torch.tensor([[1.0, 2.0], [3.0, 3.0]])  # of two clients
    start = torch.tensor([[0.5, -1.0], [3.5, 3.0]])
    values, gradients = FedProx(mu=0.4).pull([], weights, start)
    assert values.tolist() == pytest.approx([0.2 * (0.25 + 9.0), 0.2 * 0.25])
    assert torch.allclose(gradients, 0.4 * torch.tensor([[0.5, 3.0], [-0.5, 0.0]]))
    assert FedProx(mu=0).pull([], weights, start) is None


def test_one_step_moves_as_autograd_says():
    """One client, two steps of plain SGD: the second is pulled back towards the start."""
    from tests.simulate import blobs

    settings = {"clients": 1, "active": 1, "rounds": 1, "local_steps": 2, "momentum": 0, "lr": 0.1, "batch_size": 400}
    free = simulate(blobs(), **settings).models[0]
    one = simulate(blobs(), **settings | {"local_steps": 1}).models[0]
    held = simulate(blobs(), method="fedprox", **{"fedprox.mu": 0.5}, **settings).models[0]
    from raysim.models import build

    start = {k: v.detach().numpy() for k, v in build("mlp", (1, 8, 8), 5, seed=3).named_parameters()}
    for name, value in held.items():
        # Same first step; the second adds −lr·μ·(w₁ − w₀).
        assert value == pytest.approx(free[name] - 0.1 * 0.5 * (one[name] - start[name]), abs=2e-6), name


def test_a_strong_pull_keeps_the_model_nearer_to_its_start():
    from raysim.models import build

    start = torch.cat([p.detach().reshape(-1) for p in build("mlp", (1, 8, 8), 5, seed=3).parameters()])

    def moved(**settings):
        model = simulate(rounds=1, **settings).models[0]
        return (torch.cat([torch.from_numpy(v).reshape(-1) for v in model.values()]) - start).norm().item()

    assert moved(method="fedprox", **{"fedprox.mu": 5.0}) < 0.9 * moved()
