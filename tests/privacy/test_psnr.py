import numpy as np
import torch

from raysim.privacy.psnr import psnr


def test_against_numpy_and_by_hand():
    draw = np.random.default_rng(0)
    made, real = draw.random((4, 3, 8, 8)), draw.random((4, 3, 8, 8))
    expected = [10 * np.log10(1 / ((m - r) ** 2).mean()) for m, r in zip(made, real, strict=True)]
    np.testing.assert_allclose(psnr(torch.from_numpy(made), torch.from_numpy(real)).numpy(), expected)
    assert torch.isinf(psnr(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2))).all()
