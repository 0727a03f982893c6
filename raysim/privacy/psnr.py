"""Peak signal-to-noise ratio: a measure of how similar two images are, and no guarantee of privacy."""

import torch

LEAST = 0.5 / 255  # root mean square distance below which images are the same in 8 bits


def psnr(made: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Return the PSNR of each pair of images in [0, 1], in dB: 10·log10(1 / MSE).

    Images that are the same in 8 bits have 54.15 dB. Infinity for equal images, such as two black ones, would be the
    mean of all, and is not JSON.

    >>> psnr(torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 0.1)).tolist()
    [20.0]
    """
    return -10 * (made - real).square().mean((1, 2, 3)).clamp(min=LEAST**2).log10()
