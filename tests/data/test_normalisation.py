"""Pixels to what networks compute on, and back."""

import numpy as np
import pytest

from raysim.data.normalisation import Normalisation

SCALE = Normalisation((100.0, 50.0, 20.0), (10.0, 20.0, 50.0))


def normalised(pixels: np.ndarray) -> np.ndarray:
    mean, std = (np.array(each, np.float32).reshape(1, 3, 1, 1) for each in (SCALE.mean, SCALE.std))
    return (pixels.astype(np.float32) - mean) / std


def test_every_pixel_comes_back():
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16).repeat(3, 1)
    assert np.array_equal(SCALE.to_bytes(normalised(pixels)), pixels)


@pytest.mark.parametrize(
    ("value", "byte"),
    [(7.4, 7), (7.6, 8), (0.4, 0), (254.6, 255), (-0.4, 0), (-3.0, 0), (255.4, 255), (300.0, 255), (1e6, 255)],
)
def test_what_lies_between_is_rounded_and_what_lies_outside_is_cut(value, byte):
    images = normalised(np.full((2, 3, 1, 1), value))
    assert SCALE.to_bytes(images).tolist() == [[[[byte]]] * 3] * 2


def test_mean_and_deviation_are_those_of_the_pixels_of_each_channel():
    pixels = np.random.default_rng(0).integers(0, 200, (5000, 2, 3, 3), dtype=np.uint8)  # more than are counted at once
    pixels[:, 1] = 7
    found = Normalisation.of(pixels)
    assert found.mean == pytest.approx(tuple(pixels.mean((0, 2, 3))))
    assert found.std == pytest.approx((pixels[:, 0].std(), 1.0))  # one that is constant would divide by zero
    assert Normalisation.half(2) == Normalisation((127.5, 127.5), (127.5, 127.5))
