import numpy as np
import torch

from raysim.privacy.psnr import psnr


def test_against_numpy_and_by_hand():
    draw = np.random.default_rng(0)
    made, real = draw.random((4, 3, 8, 8)), draw.random((4, 3, 8, 8))
    expected = [10 * np.log10(1 / ((m - r) ** 2).mean()) for m, r in zip(made, real, strict=True)]
    np.testing.assert_allclose(psnr(torch.from_numpy(made), torch.from_numpy(real)).numpy(), expected)


def test_images_that_are_the_same_in_8_bits_have_a_highest_one():
    black = torch.zeros(3, 1, 2, 2)
    near = black + torch.tensor([0, 0.4 / 255, 1 / 255])[:, None, None, None]
    expected = [20 * np.log10(510), 20 * np.log10(510), 20 * np.log10(255)]
    np.testing.assert_allclose(psnr(near, black).numpy(), expected, rtol=1e-5)
