from types import SimpleNamespace

import pytest
import torch

from raysim.methods.fedprox import FedProx
from tests.simulate import simulate


def test_value_and_gradient_by_hand():
    """μ/2·‖w − w_t‖² at w = (1, 2), w_t = (0.5, -1): value μ/2·(0.25 + 9), gradient μ·(w − w_t)."""
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    other = torch.tensor([[3.0]], requires_grad=True)
    start, other_start = torch.tensor([0.5, -1.0]), torch.tensor([[3.5]])
    client = SimpleNamespace(model=SimpleNamespace(parameters=[w, other]), global_parameters=[start, other_start])
    term = FedProx(mu=0.4).loss(client, None)
    assert term.item() == pytest.approx(0.2 * (0.25 + 9.0 + 0.25))
    term.backward()
    assert torch.allclose(w.grad, 0.4 * torch.tensor([0.5, 3.0]))
    assert torch.allclose(other.grad, torch.tensor([[-0.2]]))


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
