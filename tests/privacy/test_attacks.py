"""Attacks on shared data of which the answer is known."""

import numpy as np
import pytest
import torch

from raysim.data import Dataset, Split
from raysim.data.federated_writer import Layout, write
from raysim.data.partitions import Partition
from raysim.data.synthetic_tables import make_table
from raysim.privacy.attacks import Attacks, Rows, matched, nearest
from tests.simulate import configure

CLIENTS, EACH, CLASSES = 6, 100, 4


@pytest.fixture(scope="module")
def data():
    """600 training and 600 test images, a grey level per class and noise; client k holds the classes k and k + 1."""
    draw = np.random.default_rng(0)

    def split(labels) -> Split:
        x = 50 * labels[:, None, None, None] + draw.integers(0, 100, (len(labels), 3, 6, 6))
        return Split(x.astype(np.uint8), labels)

    train = np.concatenate([np.repeat([k % CLASSES, (k + 1) % CLASSES], EACH // 2) for k in range(CLIENTS)])
    dataset = Dataset("grey", tuple("abcd"), split(train), split(draw.integers(0, CLASSES, 600)))
    dealt = Partition(np.arange(len(train)), EACH * np.arange(CLIENTS + 1))
    return write(dataset, dealt, Layout(), lambda value: value)


def attacks(data) -> Attacks:
    config = configure(clients=CLIENTS, active=CLIENTS, privacy=400)
    return Attacks(config, data, torch.device("cpu"), t=3)


def shared(data, pixels: np.ndarray, clients: np.ndarray):
    """Pixels in 0..255 as a part would share them."""
    scale = data.normalisation
    mean, std = (np.array(v, dtype=np.float32).reshape(1, 3, 1, 1) for v in (scale.mean, scale.std))
    return make_table((pixels - mean) / std, np.zeros(len(pixels), np.int64), clients, np.ones(len(pixels), np.int64))


def training(data) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([data.clients.read(k)[0] for k in range(CLIENTS)]), np.repeat(np.arange(CLIENTS), EACH)


def by_name(figures) -> dict:
    return {figure.name: figure for figure in figures}


def test_copies_of_training_data_are_caught(data):
    found = by_name(attacks(data).on_images("copier", shared(data, *training(data)), [0]))
    assert found["copier.auc"].value > 0.99
    assert found["copier.tpr_at_1%_fpr"].value == 1
    assert found["copier.nearer_to_training"].value == 1
    assert found["copier.nearest_training"].value == pytest.approx(0, abs=1e-6)
    assert found["copier.nearest_held_out"].value > 0.05
    assert found["copier.psnr_nearest"].value == pytest.approx(54.15, abs=0.01)


def test_copies_of_some_are_caught_as_often_as_they_are_some(data):
    """A quarter of every client's: the attack is sure of these and knows nothing of the others."""
    pixels, clients = training(data)
    found = by_name(attacks(data).on_images("copier", shared(data, pixels[::4], clients[::4]), [0]))
    low, high = found["copier.auc"].interval
    assert low < 0.25 + 0.75 / 2 < high
    assert 0.15 < found["copier.tpr_at_1%_fpr"].value < 0.35
    assert found["copier.nearer_to_training"].value == 1


@pytest.mark.parametrize("source", ["clients", "server"])
def test_noise_tells_nothing(data, source):
    draw = np.random.default_rng(5)
    clients = np.full(600, -1) if source == "server" else np.repeat(np.arange(CLIENTS), EACH)
    table = shared(data, draw.integers(0, 256, (600, 3, 6, 6)), clients)
    found = by_name(attacks(data).on_images("noise", table, list(range(CLIENTS))))
    low, high = found["noise.auc"].interval
    assert low < 0.5 < high
    few, many = found["noise.tpr_at_1%_fpr"].interval
    assert few < 0.01 < many
    if source == "clients":
        low, high = found["noise.nearer_to_training"].interval
        assert low < 0.5 < high


def test_classes_tell_nothing(data):
    """Shared images of two classes are near these classes' members and others alike."""
    draw = np.random.default_rng(6)
    pixels = 50 * draw.integers(0, 2, 200)[:, None, None, None] + draw.integers(0, 100, (200, 3, 6, 6))
    found = by_name(attacks(data).on_images("fresh", shared(data, pixels, np.zeros(200, np.int64)), [0]))
    low, high = found["fresh.auc"].interval
    assert low < 0.5 < high


def test_only_clients_that_share_have_members(data):
    """Of client 0's copies: its images are all found. Were the other clients' taken for members, few would be."""
    pixels, clients = training(data)
    table = shared(data, pixels[:EACH], clients[:EACH])
    assert by_name(attacks(data).on_images("copier", table, list(range(CLIENTS))))["copier.auc"].value > 0.99


def test_a_model_that_remembers_is_caught_and_one_that_does_not_is_not(data):
    known = {image.tobytes() for image in training(data)[0]}
    draw = np.random.default_rng(7)

    def remembers(x, y):
        return torch.tensor([float(image.tobytes() not in known) for image in x]) + 0.1 * torch.from_numpy(y)

    def knows_classes(x, y):
        return torch.from_numpy(y + draw.normal(0, 0.01, len(y)))

    everyone = list(range(CLIENTS))
    caught, useless = (by_name(attacks(data).on_model(everyone, f))["model.auc"] for f in (remembers, knows_classes))
    assert caught.value == 1
    assert useless.interval[0] < 0.5 < useless.interval[1]


def test_means_are_attacked_class_by_class(data):
    """Features that are a label and how well a sample is remembered: only the distance in its class tells of it."""
    known = {image.tobytes() for image in training(data)[0]}
    draw = np.random.default_rng(8)

    def features(x, y):
        far = [0.0 if image.tobytes() in known else 1.0 for image in x]
        return torch.tensor(np.stack([10.0 * y, far + draw.normal(0, 0.2, len(y))], 1)).float()

    # Only three of four classes have a mean; behind the features stands something else.
    vectors = torch.tensor([[0.0, 0.0, 7.0], [10.0, 0.0, 7.0], [30.0, 0.0, 7.0]])
    everyone = list(range(CLIENTS))
    found = by_name(attacks(data).on_means("means", vectors, np.array([0, 1, 3]), everyone, features))
    assert found["means.auc"].value > 0.9
    shuffled = by_name(
        attacks(data).on_means(
            "means", vectors, np.array([0, 1, 3]), everyone, lambda x, y: features(x, y)[:, :1].expand(-1, 2)
        )
    )
    assert shuffled["means.auc"].value == 0.5  # all of a class are equal


def test_matched_classes():
    draw = np.random.default_rng(0)
    members, others = np.repeat([0, 1, 2, 5], [50, 3, 20, 9]), np.repeat([0, 1, 2, 7], [4, 30, 40, 9])
    chosen, beside = matched(members, others, 30, draw)
    assert np.bincount(members[chosen]).tolist() == np.bincount(others[beside]).tolist() == [4, 3, 10]
    assert len(set(chosen)) == len(chosen)
    assert [len(rows) for rows in matched(members, np.array([9]), 30, draw)] == [0, 0]


def test_rows_are_the_samples_of_their_items(data):
    rows = Rows.of(data.clients, [4, 1])
    expected = [np.concatenate(column) for column in zip(data.clients.read(4), data.clients.read(1), strict=True)]
    chosen = np.array([0, 150, 99])
    assert np.array_equal(rows.images(chosen), expected[0][chosen])
    assert np.array_equal(rows.labels, expected[1])


def test_nearest_against_all_distances():
    draw = np.random.default_rng(0)
    points, items = draw.normal(size=(40, 12)), draw.normal(size=(70, 12))
    items[3] = points[5]
    expected = np.sqrt(((points[:, None] - items) ** 2).mean(2)).min(1)
    blocks = torch.from_numpy(items).split(16)
    np.testing.assert_allclose(nearest(torch.from_numpy(points), blocks).numpy(), expected)


def test_blocks_change_nothing(data, monkeypatch):
    table = shared(data, *training(data))
    whole = attacks(data).on_images("copier", table, [0])
    monkeypatch.setattr("raysim.privacy.attacks.BLOCK_BYTES", 4 * 108 * 40)
    for one, other in zip(whole, attacks(data).on_images("copier", table, [0]), strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-6)
