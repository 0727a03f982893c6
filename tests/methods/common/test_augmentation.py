"""Augmentations: repeatable, each operation against NumPy, and nothing leaves [0, 1]."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from raysim.methods.common.augmentation import RANDAUGMENT, cutout, strong, weak


@pytest.fixture
def x():
    return torch.from_numpy(np.random.default_rng(0).random((40, 3, 16, 24), dtype=np.float32))


def strengths(*values):
    return torch.tensor(values).view(-1, 1, 1, 1)


@pytest.mark.parametrize("change", [weak, strong])
def test_the_draws_decide_everything(x, change):
    first, again, other = (change(x, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == x.shape
    assert first.min() >= 0
    assert first.max() <= 1


def test_weak_shifts_and_flips_as_numpy_does(x):
    made, draw = weak(x, np.random.default_rng(3)), np.random.default_rng(3)
    down, right = draw.integers(-2, 3, size=40), draw.integers(-3, 4, size=40)
    flipped = draw.random(40) < 0.5
    for i in range(40):
        padded = np.pad(x[i].numpy(), ((0, 0), (2, 2), (3, 3)), mode="reflect")
        expected = padded[:, 2 - down[i] : 18 - down[i], 3 - right[i] : 27 - right[i]]
        np.testing.assert_array_equal(made[i], expected[:, :, ::-1] if flipped[i] else expected)
    assert 5 < flipped.sum() < 35


def test_weak_without_flips_keeps_the_draws_of_the_shifts(x):
    kept = weak(x, np.random.default_rng(3), flip=False)
    flipped = weak(x, np.random.default_rng(3))
    same = [torch.equal(a, b) for a, b in zip(kept, flipped, strict=True)]
    mirrored = [torch.equal(a.flip(2), b) for a, b in zip(kept, flipped, strict=True)]
    assert sum(same) not in (0, 40)
    assert np.array_equal(~np.array(same), mirrored)


def test_cutout_is_a_grey_square_of_half_the_side(x):
    made = cutout(x + 2, np.random.default_rng(0))  # no pixel is grey by chance
    for image in made:
        grey = (image == 0.5).all(0)
        assert ((image == 0.5).any(0) == grey).all()
        rows, columns = np.flatnonzero(grey.any(1)), np.flatnonzero(grey.any(0))
        assert grey.sum() == len(rows) * len(columns) > 0
        assert len(rows) <= 8
        assert len(columns) <= 12
    assert max((image == 0.5).all(0).sum() for image in made) == 8 * 12


def test_every_operation_comes_and_two_are_applied(x, monkeypatch):
    seen = []
    for name, operation in list(RANDAUGMENT.items()):
        recorded = lambda x, s, name=name, do=operation: (seen.append((name, len(x))), do(x, s))[1]  # noqa: E731
        monkeypatch.setitem(RANDAUGMENT, name, recorded)
    strong(x, np.random.default_rng(0))
    assert {name for name, _ in seen} == set(RANDAUGMENT)
    assert sum(count for _, count in seen) == 2 * len(x)


def test_equalise_against_ranks():
    values = np.array([0.1, 0.1, 0.1, 0.4, 0.4, 0.9], np.float32).reshape(1, 1, 2, 3)
    made = RANDAUGMENT["equalise"](torch.from_numpy(values), strengths(0.0))
    np.testing.assert_allclose(made.flatten(), [0, 0, 0, 2 / 3, 2 / 3, 1], atol=1e-6)
    flat = torch.full((1, 1, 2, 3), 0.3)
    assert torch.equal(RANDAUGMENT["equalise"](flat, strengths(0.0)), flat)


def test_operations_on_values_against_numpy(x):
    u = np.linspace(0, 0.95, 40, dtype=np.float32).reshape(-1, 1, 1, 1)
    pixels, part = x.numpy(), 0.05 + 0.9 * u
    grey = (pixels * np.float32([0.299, 0.587, 0.114]).reshape(1, 3, 1, 1)).sum(1, keepdims=True)
    low, high = pixels.min((2, 3), keepdims=True), pixels.max((2, 3), keepdims=True)
    step = 2 ** (4 - np.floor(5 * u))
    expected = {
        "identity": pixels,
        "autocontrast": (pixels - low) / (high - low),
        "brightness": part * pixels,
        "colour": grey + part * (pixels - grey),
        "contrast": grey.mean((2, 3), keepdims=True) * (1 - part) + part * pixels,
        "posterise": np.floor(pixels * 255 / step) * step / 255,
        "solarise": np.where(pixels < u, pixels, 1 - pixels),
    }
    for name, values in expected.items():
        made = RANDAUGMENT[name](x, torch.from_numpy(u))
        np.testing.assert_allclose(made, values, atol=1e-5, err_msg=name)


def test_sharpness_is_towards_a_blur_of_thirteen_parts(x):
    made = RANDAUGMENT["sharpness"](x, torch.zeros(40, 1, 1, 1))
    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    blurred = (x[7, 2, 4:7, 9:12].numpy() * kernel).sum()
    assert made[7, 2, 5, 10].item() == pytest.approx(0.05 * x[7, 2, 5, 10].item() + 0.95 * blurred, abs=1e-5)
    assert torch.equal(made[:, :, 0], x[:, :, 0])


@pytest.mark.parametrize(
    ("name", "matrix", "offset"),
    [
        ("rotate", [[np.cos(np.pi / 12), np.sin(np.pi / 12)], [-np.sin(np.pi / 12), np.cos(np.pi / 12)]], [0, 0]),
        ("shear x", [[1, 0], [0.15, 1]], [0, 0]),
        ("shear y", [[1, 0.15], [0, 1]], [0, 0]),
        ("translate x", [[1, 0], [0, 1]], [0, 3]),
        ("translate y", [[1, 0], [0, 1]], [3, 0]),
    ],
)
def test_moving_operations_against_scipy(name, matrix, offset):
    """Strength 0.75 is half the way: 15 degrees, a shear of 0.15, 15 % of 20 pixels; 0.5 is none."""
    image = torch.from_numpy(np.random.default_rng(0).random((1, 2, 20, 20), dtype=np.float32))
    torch.testing.assert_close(RANDAUGMENT[name](image, strengths(0.5)), image)
    middle = np.array([9.5, 9.5])
    offset = middle + offset - np.array(matrix) @ middle  # rows and columns of the source, from those of the result
    made = RANDAUGMENT[name](image, strengths(0.75))
    for channel, values in zip(made[0], image[0].numpy(), strict=True):
        expected = ndimage.affine_transform(values, matrix, offset, order=1, mode="grid-constant")
        np.testing.assert_allclose(channel, expected, atol=1e-4)
