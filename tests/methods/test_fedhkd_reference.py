"""FedHKD as FedPA's authors have it: terms, uploads and averages, each against NumPy."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from raysim.engine.in_process import InProcess
from raysim.methods.base import Uploads
from raysim.methods.fedhkd_reference import FedHKDReference
from raysim.models import build
from raysim.models.flat import FlatModel
from raysim.rng import stream
from raysim.training.client import Client, Step, train
from tests.simulate import comparable, configure, simulate

NAME = "fedhkd_reference"


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def make_client(sent, labels, **settings):
    """Client 7 in its first round; of five classes."""
    model = FlatModel(build("mlp", (1, 8, 8), 5, seed=3).eval(), torch.device("cpu"))
    x = torch.randn(len(labels), 1, 8, 8, generator=torch.Generator().manual_seed(1))
    config = configure(method=NAME, **settings)
    return Client(7, 1, config, 5, model, model.weights.clone(), x, torch.tensor(labels), {NAME: sent}, {NAME: {}})


def test_the_terms_are_mean_squared_errors():
    draw = np.random.default_rng(0)
    h, q = draw.normal(0, 1, (5, 64)), softmax(draw.normal(0, 1, (5, 5)))
    h[3], q[3] = 0, 0  # nobody has enough of this class
    sent = {"prototypes": torch.from_numpy(np.concatenate([h, q], 1)).float(), "known": torch.ones(5).bool()}
    client = make_client(sent, [0, 1, 3] * 4)
    part, z = FedHKDReference(lambda_q=0.3, gamma_h=0.7, temperature=0.4), torch.randn(12, 64)
    part.begin(client)
    term = part.loss(client, Step(client.x, client.y, client.x, client.y, z, torch.randn(12, 5), None))

    head = client.model.module.head
    weight, bias = (p.detach().double().numpy() for p in (head.weight, head.bias))
    first = [((softmax((weight @ h[c] + bias) / 0.4) - q[c]) ** 2).mean() for c in range(5)]
    second = [((f - h[y]) ** 2).mean() for f, y in zip(z.double().numpy(), client.y.numpy(), strict=True)]
    assert term.item() == pytest.approx(0.3 * np.mean(first) + 0.7 * np.mean(second), rel=1e-5)


def test_a_client_sends_means_over_its_steps_of_its_larger_classes():
    labels = [0] * 11 + [1] * 5 + [3] * 4  # 55, 25 and 20 %: the last is below a quarter
    client = make_client({}, labels, local_steps=2, batch_size=10, lr=0.1, momentum=0)
    train(client)
    upload = client.config.parts[0].end(client)

    module, y = build("mlp", (1, 8, 8), 5, seed=3).double(), np.array(labels)
    order = stream(3, "batches", 1, 7).permutation(20)
    knowledge, seen = np.zeros((5, 69)), np.zeros(5)
    for rows in (order[:10], order[10:]):
        z = module.features(client.x[rows].double())
        logits = module.head(z)
        both = np.concatenate([z.detach().numpy(), softmax(logits.detach().numpy() / 0.5)], 1)
        for vector, label in zip(both, y[rows], strict=True):
            knowledge[label] += vector
            seen[label] += 1
        gradients = torch.autograd.grad(F.cross_entropy(logits, client.y[rows]), list(module.parameters()))
        with torch.no_grad():
            for p, g in zip(module.parameters(), gradients, strict=True):
                p -= 0.1 * g
    expected = knowledge / seen.clip(1)[:, None]
    expected[:, :64] += 0.02 * stream(3, f"{NAME}/noise", 1, 7).standard_normal((5, 64), dtype=np.float32)
    counts = np.array([11, 5, 0, 0, 0])
    assert upload.sum["counts"].tolist() == counts.tolist()
    np.testing.assert_allclose(upload.sum["knowledge"], counts[:, None] * expected, atol=2e-4)


@pytest.mark.parametrize("fuse", [1, 3])
def test_without_weights_no_knowledge_is_gathered(fuse, monkeypatch):
    def add(*_):
        raise AssertionError("averaged for nothing")

    monkeypatch.setattr("raysim.methods.common.step_means.add", add)
    monkeypatch.setattr("raysim.methods.common.step_means.fused_add", add)
    off = {f"{NAME}.lambda_q": 0, f"{NAME}.gamma_h": 0}
    plain = simulate(method="fedavg", fuse=fuse, rounds=1)
    assert simulate(method=NAME, fuse=fuse, rounds=1, **off).model_sha256 == plain.model_sha256


def test_averages_are_by_counts_and_a_class_without_is_zero():
    server = type("Server", (), {"state": {NAME: {}}})()
    part, local = FedHKDReference(), np.random.default_rng(0).normal(0, 1, (2, 3, 9))
    counts = np.array([[2, 0, 5], [1, 0, 3]])
    sums = torch.from_numpy((local * counts[:, :, None]).sum(0)).float()
    part.update(server, Uploads({"knowledge": sums, "counts": torch.from_numpy(counts.sum(0)).float()}, []))
    held = part.broadcast(server)
    assert held["known"].all()
    np.testing.assert_allclose(held["prototypes"][2], (5 * local[0, 2] + 3 * local[1, 2]) / 8, atol=1e-6)
    assert not held["prototypes"][1].any()


def test_the_first_round_is_fedavgs_and_the_number_of_workers_changes_nothing():
    assert simulate(method=NAME, rounds=1).model_sha256 == simulate(rounds=1).model_sha256
    settings = {"method": f"{NAME}+fedprox"}
    assert comparable(simulate(runner=InProcess(3), **settings)) == comparable(simulate(**settings))
