"""The KL divergence of a class's features between clients: its formula, and what a run reports of it."""

import math

import numpy as np
import pytest
import torch

from raysim.measures import feature_kl
from raysim.measures.feature_kl import FLOOR, class_moments, held_out_images, mean_kl
from tests.simulate import blobs, comparable, configure, federated, simulate, simulate_on_ray

DRAW = np.random.default_rng(0)


def kl(m, v, other_m, other_v) -> float:
    """KL divergence of two Gaussians with independent coordinates, as textbooks have it."""
    pairs = zip(m, v, other_m, other_v, strict=True)
    return sum(0.5 * (math.log(w / u) + (u + (a - b) ** 2) / w - 1) for a, u, b, w in pairs)


def test_the_mean_over_pairs_is_that_of_the_formula():
    clients = [{"means": DRAW.normal(0, 1, (2, 3)), "variances": DRAW.uniform(0.5, 2, (2, 3))} for _ in range(4)]
    floor = FLOOR * np.mean([each["variances"] for each in clients])
    wanted = [
        kl(a["means"][c], a["variances"][c] + floor, b["means"][c], b["variances"][c] + floor)
        for a in clients
        for b in clients
        if a is not b
        for c in range(2)
    ]
    assert mean_kl(clients) == pytest.approx(np.mean(wanted))
    assert mean_kl(clients[:1]) is None
    assert mean_kl([clients[0], clients[0]]) == pytest.approx(0, abs=1e-9)
    far = [{"means": each["means"] + 1e8, "variances": each["variances"]} for each in clients]
    assert mean_kl(far) == pytest.approx(np.mean(wanted), rel=1e-6)


def test_a_constant_feature_does_not_divide_by_zero():
    dead = [{"means": np.zeros((1, 2)), "variances": np.array([[0.0, 1.0]])} for _ in range(2)]
    assert mean_kl(dead) == pytest.approx(0, abs=1e-9)
    assert mean_kl([{"means": np.full((1, 1), float(k)), "variances": np.zeros((1, 1))} for k in range(2)]) > 1e10


def test_moments_by_class():
    features, labels = torch.tensor([[1.0, 5.0], [3.0, 5.0], [2.0, 0.0], [2.0, 4.0]]), torch.tensor([4, 4, 1, 1])
    found = class_moments(features, labels)
    assert found["means"].tolist() == [[2, 2], [2, 5]]
    assert found["variances"].tolist() == [[0, 8], [2, 0]]


def test_images_are_of_every_class_and_the_first_of_the_test_split():
    dataset = blobs()
    images, labels = held_out_images(federated(configure(), dataset), 20)
    assert np.bincount(labels).tolist() == [4] * 5
    first = np.flatnonzero(dataset.test.y == 2)[:4]
    assert np.array_equal(images[labels == 2], dataset.test.x[first])


def test_a_run_reports_it_by_the_clients_own_models(monkeypatch):
    """Of the models that clients upload, taken down on the way, it is what the formula gives."""
    seen = []
    original = feature_kl.class_moments

    def spy(features, labels):
        seen.append((features.clone(), labels.clone()))
        return original(features, labels)

    monkeypatch.setattr(feature_kl, "class_moments", spy)
    result = simulate(feature_kl=50, rounds=2, active=3)
    assert len(seen) == 6 + 1  # three clients, two rounds; and the one whose operations are counted
    first = [(features.double(), labels) for features, labels in seen[:3]]
    floor = FLOOR * np.mean([[f[y == c].var(0).numpy() for c in y.unique()] for f, y in first])
    wanted = [
        kl(*(m for f in (a, b) for m in (f[y == c].mean(0).tolist(), (f[y == c].var(0) + floor).tolist())))
        for i, (a, y) in enumerate(first)
        for j, (b, _) in enumerate(first)
        if i != j
        for c in y.unique()
    ]
    assert result.history[0].reported["feature_kl"] == pytest.approx(np.mean(wanted))


def test_it_changes_nothing_and_is_not_there_when_off():
    on, off = simulate(feature_kl=30), simulate()
    assert on.model_sha256 == off.model_sha256
    assert all("feature_kl" in metrics.reported for metrics in on.history)
    assert not any(metrics.reported for metrics in off.history)
    assert [m.bytes_up for m in on.history] == [m.bytes_up for m in off.history]


def test_training_longer_alone_drives_clients_apart():
    short, long = (simulate(feature_kl=100, rounds=1, local_epochs=e, beta=0.1, min_samples=5) for e in (1, 8))
    assert long.history[0].reported["feature_kl"] > 1.5 * short.history[0].reported["feature_kl"]


@pytest.mark.parametrize("settings", [{}, {"fuse": 3}], ids=["alone", "fused"])
@pytest.mark.usefixtures("local_ray")
def test_on_actors_the_same(settings):
    settings = {"feature_kl": 40, "rounds": 2, "method": "fedprox", **settings}
    assert comparable(simulate(**settings)) == comparable(simulate_on_ray(actors=2, **settings))
