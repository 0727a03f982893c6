"""A run as Python sees it: images as its model takes them."""

import numpy as np
import pytest
import torch

from raysim.data.normalisation import Normalisation
from raysim.errors import InputError
from raysim.finished_run import Run


@pytest.fixture
def run() -> Run:
    found = Run.__new__(Run)
    found.normalisation = Normalisation((100.0, 50.0, 25.0), (10.0, 20.0, 5.0))
    return found


def test_bytes_and_floats_of_the_same_pixels_are_normalised_alike(run):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 5, 6), dtype=np.uint8)
    before = pixels.copy()
    mean, std = (np.array(each).reshape(1, 3, 1, 1) for each in ((100, 50, 25), (10, 20, 5)))
    expected = (pixels - mean) / std
    for given in (pixels, pixels / 255, (pixels / 255).astype(np.float32), torch.from_numpy(pixels)):
        found = run.normalise(given)
        assert found.dtype == torch.float32
        assert np.allclose(found.numpy(), expected, atol=1e-4)
    assert np.array_equal(pixels, before)  # what was given stays as it is


def test_floats_given_are_left_as_they_are(run):
    given = torch.rand(2, 3, 4, 4)
    before = given.clone()
    run.normalise(given)
    assert torch.equal(given, before)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.full((2, 3, 4, 4), 200.0), "values from 200 to 200; give pixels as uint8, or as floats from 0 to 1"),
        (np.full((2, 3, 4, 4), -0.5), "values from -0.5 to -0.5"),
        (np.full((2, 3, 4, 4), np.nan), "values from nan to nan"),
        (np.zeros((2, 3, 4, 4), np.int64), "torch.int64; give pixels as uint8"),
        (np.zeros((2, 4, 4, 3), np.uint8), r"shape (2, 4, 4, 3); give images as [N, 3, H, W]"),
        (np.zeros((3, 4, 4), np.uint8), r"shape (3, 4, 4); give images as [N, 3, H, W]"),
        (np.zeros((2, 1, 4, 4), np.uint8), r"shape (2, 1, 4, 4); give images as [N, 3, H, W]"),
    ],
)
def test_what_would_be_nonsense_is_refused(run, images, message):
    with pytest.raises(InputError, match=r"^normalise: [^\n]*$") as raised:
        run.normalise(images)
    assert message in str(raised.value)
