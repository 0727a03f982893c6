"""The t-SNE picture: what goes into it, and that it separates what is separate."""

import json

import numpy as np
import pytest
from PIL import Image
from sklearn.manifold import TSNE

from raysim.cli import main
from raysim.observe import features
from raysim.observe.features import class_distances, draw_features, embed, generator_map
from tests.simulate import SYNTHESIS, blobs, simulate, simulate_on_ray

DRAW = np.random.default_rng(0)


def test_distances_by_hand():
    points = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    assert class_distances(points, np.array([1, 1, 0])) == pytest.approx((5, (1 + np.sqrt(18)) / 2))
    assert class_distances(points[:1], np.array([2])) == (0, 0)


def test_the_map_of_generated_features_by_hand(monkeypatch):
    """FedPA's table V: distances to centroids, and between them, a centroid with itself included."""
    places = np.array([[0.0, 0.0], [0.0, 2.0], [3.0, 1.0], [3.0, 1.0], [0.0, 5.0]], dtype=np.float32)
    monkeypatch.setattr("raysim.observe.features.embed", lambda groups: [places])
    # Centroids (0, 1), (3, 1), (0, 5): distances 3, 4, 5.
    found = generator_map(np.zeros((5, 8), np.float32), np.array([7, 7, 2, 2, 4]))
    assert found == pytest.approx({"intra": (1 + 0 + 0) / 3, "inter": 2 * (3 + 4 + 5) / 9})


def test_a_runs_summary_has_the_map_of_its_generated_features_alone(tmp_path, monkeypatch):
    alone = []

    def recorded(groups):
        alone.extend(groups if len(groups) == 1 else [])
        return embed(groups)

    monkeypatch.setattr(features, "embed", recorded)
    words = "run --in-process --method fedpa --model small-cnn --train-size 200 --test-size 100 --clients 4 --rounds 2"
    assert main([*words.split(), "--fedpa.gen-steps", "5", "--tsne", "50", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "summary.json").read_text())["generator_map"]
    labels = np.array(json.loads((tmp_path / "features.json").read_text())["generated (fedpa)"]["label"])
    (points,) = alone
    assert len(points) == len(labels) == 50
    places = TSNE(2, perplexity=49 / 3, init="pca", random_state=0).fit_transform(points).astype(np.float64)
    centroids = {label: places[labels == label].mean(0) for label in set(labels)}
    intra = [np.mean([np.hypot(*(p - centre)) for p in places[labels == k]]) for k, centre in centroids.items()]
    inter = [np.hypot(*(a - b)) for a in centroids.values() for b in centroids.values()]
    assert found.keys() == {"generated (fedpa)"}
    assert found["generated (fedpa)"] == pytest.approx({"intra": np.mean(intra), "inter": np.mean(inter)}, rel=1e-3)


def test_generated_features_are_of_every_class_as_many():
    labels = simulate(**SYNTHESIS, tsne=50).features["generated (fedpa)"][1]
    assert np.bincount(labels).tolist() == [10] * 5


def test_the_map_keeps_classes_apart_and_is_the_same_twice(tmp_path):
    labels = np.repeat([0, 1, 2], 30)
    apart = (labels[:, None] * 20 + DRAW.normal(0, 1, (90, 16))).astype(np.float32)
    mixed = DRAW.normal(0, 1, (60, 16)).astype(np.float32)
    kinds = {"real": (apart, labels), "made": (mixed, labels[:60])}
    measured = draw_features(kinds, ["a", "b", "$c"], tmp_path / "f.png")
    assert measured["real"]["inter"] > 2 * measured["real"]["intra"]
    assert measured["made"]["inter"] < 1.5 * measured["made"]["intra"]
    assert Image.open(tmp_path / "f.png").width > 800
    first, second = (embed([apart, mixed]) for _ in range(2))
    assert [len(g) for g in first] == [90, 60]
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_run_gives_real_synthetic_and_generated_features():
    dataset = blobs()
    result = simulate(dataset, **SYNTHESIS, tsne=50)
    assert {kind: len(labels) for kind, (_, labels) in result.features.items()} == {
        "real": 47, "synthetic (hfmds)": 50, "generated (fedpa)": 50,
    }  # fmt: skip
    assert all(features.shape[1] == 64 for features, _ in result.features.values())
    # The first 13 of every test batch, by the final model: 200 images in batches of 64, the last has 8.
    rows = [*range(13), *range(64, 77), *range(128, 141), *range(192, 200)]
    assert result.features["real"][1].tolist() == dataset.test.y[rows].tolist()
    x = (dataset.test.x[:13].reshape(13, -1) - dataset.train.x.mean()) / dataset.train.x.std()
    weight, bias = result.models[0]["extractor.1.weight"], result.models[0]["extractor.1.bias"]
    np.testing.assert_allclose(result.features["real"][0][:13], np.maximum(x @ weight.T + bias, 0), atol=1e-4)
    assert simulate(dataset, **SYNTHESIS).features == {}


@pytest.mark.usefixtures("local_ray")
def test_on_actors_too_and_with_the_clients_own_models():
    settings = {"method": "fedbn", "model": "fedpa-cnn", "evaluation": "clients", "rounds": 1, "tsne": 40}
    here, there = simulate(**settings).features, simulate_on_ray(actors=2, **settings).features
    assert here.keys() == there.keys() == {"real"}
    assert np.array_equal(here["real"][0], there["real"][0])
