"""Peak signal-to-noise ratio: how alike two images are. A similarity, not a guarantee of privacy."""

import torch


def psnr(made: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Per pair of images in [0, 1], in dB: 10·log10(1 / MSE); equal images give infinity.

    >>> psnr(torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 0.1)).tolist()
    [20.0]
    """
    return -10 * (made - real).square().mean((1, 2, 3)).log10()


def nearest_psnr(made: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Of each made image with the real one nearest to it: for images that were not made from one real image each.

    >>> nearest_psnr(torch.full((1, 1, 2, 2), 0.1), torch.stack([torch.ones(1, 2, 2), torch.zeros(1, 2, 2)])).tolist()
    [20.0]
    """
    apart = torch.cdist(made.flatten(1), real.flatten(1))
    return psnr(made, real[apart.argmin(1)])
