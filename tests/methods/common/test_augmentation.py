"""Augmentations: repeatable, each operation against NumPy, and nothing leaves [0, 1]."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from raysim.methods.common.augmentation import RANDAUGMENT, augmented, draw_strong, draw_weak, shifted


@pytest.fixture
def x():
    return torch.from_numpy(np.random.default_rng(0).random((40, 3, 16, 24), dtype=np.float32))


def strengths(*values):
    return torch.tensor(values).view(-1, 1, 1, 1)


def weak(x, draw, flip=True):
    """As FixMatch does it."""
    ((rows, columns),) = draw_weak([len(x)], x, draw, flip)
    return shifted(x, rows, columns)


def strong(x, draw, flip=True):
    """As FixMatch does it, a block of one batch."""
    (draws,) = draw_strong([[len(x)]], x, draw, flip)
    return augmented(x, draws)


def moved_by_numpy(x, draw, flip=True):
    down, right = draw.integers(-2, 3, size=40), draw.integers(-3, 4, size=40)
    flipped = (draw.random(40) < 0.5) & flip
    assert not flip or 5 < flipped.sum() < 35
    made = []
    for image, rows, columns, turned in zip(x.numpy(), down, right, flipped, strict=True):
        padded = np.pad(image, ((0, 0), (2, 2), (3, 3)), mode="reflect")
        there = padded[:, 2 - rows : 18 - rows, 3 - columns : 27 - columns]
        made.append(there[:, :, ::-1] if turned else there)
    return np.stack(made)


@pytest.mark.parametrize("change", [weak, strong])
def test_the_draws_decide_everything(x, change):
    first, again, other = (change(x, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == x.shape
    assert first.min() >= 0
    assert first.max() <= 1


@pytest.mark.parametrize("flip", [True, False])
def test_weak_shifts_and_flips_as_numpy_does(x, flip):
    made = weak(x, np.random.default_rng(3), flip)
    np.testing.assert_array_equal(made, moved_by_numpy(x, np.random.default_rng(3), flip))


@pytest.mark.parametrize("flip", [True, False])
def test_strong_begins_with_a_shift_and_ends_with_a_grey_square_of_half_the_side(x, flip, monkeypatch):
    for name in RANDAUGMENT:
        monkeypatch.setitem(RANDAUGMENT, name, lambda x, strength: x)
    x, draw = 0.4 * x, np.random.default_rng(3)  # no pixel is grey by chance
    made, expected = strong(x, np.random.default_rng(3), flip).numpy(), moved_by_numpy(x, draw, flip)
    for _ in range(2):
        draw.integers(len(RANDAUGMENT), size=40), draw.random(40)
    tops, lefts = draw.integers(16, size=40) - 4, draw.integers(24, size=40) - 6  # part of a square may lie outside
    for image, top, left in zip(expected, tops, lefts, strict=True):
        image[:, max(top, 0) : top + 8, max(left, 0) : left + 12] = 0.5
    np.testing.assert_array_equal(made, expected)
    assert max((image == 0.5).all(0).sum() for image in made) == 8 * 12


def test_blocks_are_changed_as_their_batches_one_by_one(x):
    """A batch's draws are its own, however many are augmented at once."""
    draw = np.random.default_rng(3)
    apart = torch.cat([strong(part, draw) for part in x.split([7, 13, 20])])
    first, second = draw_strong([[7, 13], [20]], x, np.random.default_rng(3), flip=True)
    torch.testing.assert_close(torch.cat([augmented(x[:20], first), augmented(x[20:], second)]), apart)


def test_every_operation_comes_and_two_are_applied(x, monkeypatch):
    seen = []
    for name, operation in list(RANDAUGMENT.items()):
        recorded = lambda x, s, name=name, do=operation: (seen.append((name, len(x))), do(x, s))[1]  # noqa: E731
        monkeypatch.setitem(RANDAUGMENT, name, recorded)
    x = x.repeat(3, 1, 1, 1)
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
