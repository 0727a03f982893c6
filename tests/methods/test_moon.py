"""MOON's term against NumPy, and when there is one."""

import numpy as np
import pytest
import torch

from raysim.engine.in_process import InProcess
from raysim.methods.moon import Moon
from raysim.models import build
from raysim.models.flat import FlatModel
from raysim.training.client import Client, Step
from tests.simulate import comparable, configure, simulate

CPU = torch.device("cpu")


def make_client(model, state):
    flat = FlatModel(build(model, (1, 8, 8), 5, seed=3), CPU)
    x, y = torch.randn(12, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 5
    return Client(7, 2, configure(method="moon"), 5, flat, flat.weights.clone(), x, y, {}, {"moon": state})


def cosine(a, b):
    return (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())


@pytest.mark.parametrize("model", ["mlp", "fedpa-cnn"])  # one without and one with batch-norm
def test_the_contrastive_term(model):
    previous = FlatModel(build(model, (1, 8, 8), 5, seed=8), CPU)
    client, part = make_client(model, {"previous": previous.weights}), Moon(mu=0.7, temperature=0.3)
    client.model.module.train()
    part.begin(client)
    with torch.no_grad():
        client.model.weights.mul_(0.9)  # it has trained since
    statistics = client.model.weights[client.model.trainable :].clone()
    z = torch.randn(12, client.model.module.feature_size, requires_grad=True)
    term = part.loss(client, Step(client.x, client.y, client.x, client.y, z, None, None))
    # The frozen models are in evaluation mode and leave the client's alone.
    assert torch.equal(client.model.weights[client.model.trainable :], statistics)
    assert client.model.module.training

    modules = (build(model, (1, 8, 8), 5, seed).eval() for seed in (3, 8))
    near, far = (module.features(client.x).detach().double().numpy() for module in modules)
    samples = z.detach().double().numpy()
    total = 0.0
    for i in range(12):
        right, wrong = (np.exp(cosine(samples[i], other[i]) / 0.3) for other in (near, far))
        total -= np.log(right / (right + wrong))
    assert term.item() == pytest.approx(0.7 * total / 12, rel=1e-5)
    before = term.item()
    (gradient,) = torch.autograd.grad(term, [z])
    step = Step(client.x, client.y, client.x, client.y, (z - 0.5 * gradient).detach(), None, None)
    assert part.loss(client, step).item() < before


def test_without_a_previous_model_there_is_no_term():
    client = make_client("mlp", {})
    Moon().begin(client)
    assert Moon().loss(client, None) is None
    history = simulate(method="moon", active=10).history
    assert [sorted(line["terms"]) for line in history] == [[], ["moon"], ["moon"]]
    assert simulate(method="moon", rounds=1).model_sha256 == simulate(rounds=1).model_sha256


def test_the_previous_model_is_the_clients_own_last():
    client = make_client("mlp", {})
    client.model.weights.add_(1)
    Moon().end(client)
    assert torch.equal(client.state["moon"]["previous"], client.model.weights)
    client.model.weights.add_(1)  # the next client's
    assert not torch.equal(client.state["moon"]["previous"], client.model.weights)


def test_the_number_of_workers_changes_nothing():
    settings = {"method": "moon+fedbn", "model": "fedpa-cnn", "evaluation": "clients"}
    assert comparable(simulate(runner=InProcess(3), **settings)) == comparable(simulate(**settings))
