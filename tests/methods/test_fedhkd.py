"""FedHKD's terms and averages, against NumPy."""

import numpy as np
import pytest
import torch

from raysim.engine.in_process import InProcess
from raysim.methods.base import Uploads
from raysim.methods.fedhkd import FedHKD
from raysim.models import build
from raysim.models.flat import FlatModel
from raysim.rng import stream
from raysim.training.client import Client, Step, train
from tests.simulate import comparable, configure, simulate


def make_client(sent, t=2, **settings):
    """Client 7 with 30 images of classes 0, 1 and 3 out of 5."""
    model = FlatModel(build("mlp", (1, 8, 8), 5, seed=3).eval(), torch.device("cpu"))
    x, y = torch.randn(30, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 3] * 10)
    config = configure(method="fedhkd", eval_batch=8, **settings)
    return Client(7, t, config, 5, model, model.weights.clone(), x, y, {"fedhkd": sent}, {"fedhkd": {}})


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize(("lambda_q", "gamma_h"), [(0.3, 0.7), (0.3, 0.0), (0.0, 0.7)])
def test_the_terms(lambda_q, gamma_h):
    draw = np.random.default_rng(0)
    known = np.array([True, True, True, False, True])  # class 3 is absent
    h, q = draw.normal(0, 1, (5, 64)), softmax(draw.normal(0, 1, (5, 5)))
    means = np.concatenate([h, q], 1) if lambda_q else h
    client = make_client({"prototypes": torch.from_numpy(means).float(), "known": torch.from_numpy(known)})
    z = torch.randn(30, 64)
    part = FedHKD(lambda_q=lambda_q, gamma_h=gamma_h, temperature=0.4)
    term = part.loss(client, Step(client.x, client.y, client.x, client.y, z, None, None))

    head = client.model.module.head
    weight, bias = (p.detach().double().numpy() for p in (head.weight, head.bias))
    first = [np.linalg.norm(softmax((weight @ h[c] + bias) / 0.4) - q[c]) for c in range(5) if known[c]]
    second = [np.linalg.norm(f - h[y]) * known[y] for f, y in zip(z.double().numpy(), client.y.numpy(), strict=True)]
    assert term.item() == pytest.approx(lambda_q * sum(first) / 4 + gamma_h * sum(second) / 30, rel=1e-5)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_what_a_client_sends(noise):
    client = make_client({}, t=1)
    train(client)
    upload = FedHKD(noise=noise, temperature=0.4).end(client)
    with torch.no_grad():
        z = client.model.module.features(client.x)
        q = softmax(client.model.module.head(z).double().numpy() / 0.4)
    added = stream(3, "fedhkd/noise", 1, 7).standard_normal((5, 64), dtype=np.float32) if noise else np.zeros((5, 64))
    assert upload.sum["counts"].tolist() == [10, 10, 0, 10, 0]
    for c in (0, 1, 3):
        mine = client.y.numpy() == c
        h = z.double().numpy()[mine].mean(0) + noise * added[c]
        expected = np.concatenate([h, q[mine].mean(0)])
        np.testing.assert_allclose(upload.sum["knowledge"][c] / 10, expected, atol=1e-5)
    assert not upload.sum["knowledge"][[2, 4]].any()


def test_averages_are_by_counts_and_an_absent_class_keeps_its_last():
    server = type("Server", (), {"state": {"fedhkd": {}}})()
    part, draw = FedHKD(), np.random.default_rng(0)
    local, counts = draw.normal(0, 1, (2, 3, 9)), np.array([[2, 0, 5], [1, 0, 3]])
    for round in (local * counts[:, :, None], np.stack([local[0] * [[0], [0], [7]]])):
        seen = counts.sum(0) if len(round) == 2 else np.array([0, 0, 7])
        sums = {"knowledge": torch.from_numpy(round.sum(0)).float(), "counts": torch.from_numpy(seen).float()}
        part.update(server, Uploads(sums, []))
    held = part.broadcast(server)
    assert held["known"].tolist() == [True, False, True]
    np.testing.assert_allclose(held["prototypes"][0], (2 * local[0, 0] + local[1, 0]) / 3, atol=1e-6)
    np.testing.assert_allclose(held["prototypes"][2], local[0, 2], atol=1e-6)


def test_the_first_round_is_fedavgs():
    assert simulate(method="fedhkd", rounds=1).model_sha256 == simulate(rounds=1).model_sha256
    history = simulate(method="fedhkd").history
    assert [sorted(line["terms"]) for line in history] == [[], ["fedhkd"], ["fedhkd"]]


def test_the_number_of_workers_changes_nothing():
    settings = {"method": "fedhkd+fedprox", "fedhkd.noise": 0.1}
    assert comparable(simulate(runner=InProcess(3), **settings)) == comparable(simulate(**settings))
