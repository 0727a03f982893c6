"""The built-in images: the same everywhere, for ever, however many one asks for; and as hard as they should be."""

import hashlib

import numpy as np
import pytest

from raysim.data import load
from raysim.data.loaders import shapes

FIRST_THOUSAND = "38ab510fa62006ab49b6a796d7504c6a04482bdb9497414bc51a1404f46f62d4"


def test_the_first_thousand_images_never_change():
    x, y = shapes.generate("train", 1_000)
    assert (x.dtype, x.shape, y.dtype) == (np.uint8, (1_000, 3, 32, 32), np.int64)
    assert hashlib.sha256(x.tobytes() + y.astype("<i8").tobytes()).hexdigest() == FIRST_THOUSAND


def test_asking_for_more_keeps_the_first_ones():
    few, many = shapes.generate("train", 1_234), shapes.generate("train", 2_500)
    for a, b in zip(few, many, strict=True):
        assert np.array_equal(a, b[:1_234])


def test_every_block_is_balanced_and_its_own():
    x, y = shapes.generate("train", 3_000)
    assert (np.bincount(y.reshape(3, 1_000)[1]) == 100).all()
    assert len({image.tobytes() for image in x}) == 3_000


def test_split_and_seed_matter():
    x = [shapes.generate(split, 10, seed)[0] for split, seed in (("train", 0), ("test", 0), ("train", 1))]
    assert len({images.tobytes() for images in x}) == 3


def test_through_load():
    dataset = load("shapes", train_size=300, test_size=100, seed=4)
    assert np.array_equal(dataset.train.x, shapes.generate("train", 300, seed=4)[0])
    assert np.array_equal(dataset.test.y, shapes.generate("test", 100, seed=4)[1])
    assert dataset.train.x.flags.c_contiguous
    assert (dataset.name, dataset.classes, dataset.shape, dataset.notes) == ("shapes", 10, (3, 32, 32), ())
    assert load("shapes", fraction=0.05, test_size=1).train.x.shape[0] == 500
    assert load("shapes", train_size=3, test_size=3, image_size=16).shape == (3, 16, 16)


@pytest.mark.slow
def test_the_cnn_of_hfmds_reaches_85_to_95_percent():
    torch = pytest.importorskip("torch")
    nn = torch.nn
    torch.manual_seed(0)
    dataset = load("shapes")
    mean, std = (f(dataset.train.x, axis=(0, 2, 3), keepdims=True) for f in (np.mean, np.std))
    splits = dataset.train, dataset.test
    x, test_x = (torch.from_numpy(((split.x - mean) / std).astype(np.float32)) for split in splits)
    y, test_y = torch.from_numpy(dataset.train.y), torch.from_numpy(dataset.test.y)
    convolutions = nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)
    model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(1600, 512), nn.ReLU(), nn.Linear(512, 10))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    accuracy = []
    for _ in range(10):
        for batch in torch.randperm(len(y)).split(50):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()
        with torch.inference_mode():
            accuracy.append(100 * (model(test_x).argmax(1) == test_y).float().mean().item())
    assert accuracy[2] > 60
    assert 85 <= accuracy[-1] <= 95
