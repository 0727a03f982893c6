"""Augmentations of FixMatch (Sohn et al., 2020): weak ones flip and shift, strong ones add RandAugment and cutout.

All random draws are made on the host, so that they are the same on every device. The operations run on the whole batch
on its own device; only the draws are transferred.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

OPERATIONS = 2  # operations of RandAugment per image
GREY = 0.5  # value of the pixels that cutout covers


def weak(x: Tensor, draw: np.random.Generator, flip: bool = True) -> Tensor:
    """The images, each shifted by up to an eighth of its side, reflected at the border, and flipped at random."""
    count, _, height, width = x.shape
    down, right = (draw.integers(-(side // 8), side // 8 + 1, size=(count, 1)) for side in (height, width))
    flipped = (draw.random((count, 1)) < 0.5) & flip
    rows, columns = _reflected(np.arange(height) - down, height), _reflected(np.arange(width) - right, width)
    columns = np.where(flipped, columns[:, ::-1], columns)
    row, column = (torch.from_numpy(at).to(x.device) for at in (rows, columns))
    every = torch.arange(count, device=x.device)[:, None, None]
    return x.permute(0, 2, 3, 1)[every, row[:, :, None], column[:, None]].permute(0, 3, 1, 2)


def strong(x: Tensor, draw: np.random.Generator) -> Tensor:
    """The images in [0, 1], each after two operations of RandAugment with random strengths, and cutout."""
    for _ in range(OPERATIONS):
        which, strengths = draw.integers(len(RANDAUGMENT), size=len(x)), draw.random(len(x)).astype(np.float32)
        augmented = x.clone()
        for i, operation in enumerate(RANDAUGMENT.values()):
            chosen = np.flatnonzero(which == i)
            if len(chosen):
                rows = torch.from_numpy(chosen).to(x.device)
                strength = torch.from_numpy(strengths[chosen]).to(x.device).view(-1, 1, 1, 1)
                with torch.autocast(x.device.type, enabled=False):  # bf16 is too coarse for positions and pixels
                    augmented[rows] = operation(x[rows], strength).clamp(0, 1)
        x = augmented
    return cutout(x, draw)


def cutout(x: Tensor, draw: np.random.Generator) -> Tensor:
    """The images, each with a grey square of half its side around a random pixel; part of it may lie outside."""
    inside = []
    for side in x.shape[2:]:
        first = draw.integers(side, size=(len(x), 1)) - side // 4
        at = np.arange(side)
        inside.append(torch.from_numpy((at >= first) & (at < first + side // 2)).to(x.device))
    rows, columns = inside
    return torch.where((rows[:, :, None] & columns[:, None])[:, None], GREY, x)


def _reflected(at: np.ndarray, side: int) -> np.ndarray:
    """Positions, where those outside 0 … side − 1 are mirrored at the border pixel, which is not repeated."""
    at = np.abs(at)
    return side - 1 - np.abs(side - 1 - at)


# -- the operations: images [n, channels, height, width] in [0, 1], a strength in [0, 1) for each -------------------


def _part(strength: Tensor) -> Tensor:
    """The share of the original image in a blend, from 0.05 to 0.95."""
    return 0.05 + 0.9 * strength


def _grey(x: Tensor) -> Tensor:
    """The brightness of each pixel, by the weights of ITU-R 601."""
    return x if x.shape[1] != 3 else (x * x.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(1, keepdim=True)


def _autocontrast(x: Tensor, _: Tensor) -> Tensor:
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp(min=1e-6), x)


def _brightness(x: Tensor, strength: Tensor) -> Tensor:
    return _part(strength) * x


def _colour(x: Tensor, strength: Tensor) -> Tensor:
    return torch.lerp(_grey(x).expand_as(x), x, _part(strength))


def _contrast(x: Tensor, strength: Tensor) -> Tensor:
    return torch.lerp(_grey(x).mean((2, 3), keepdim=True).expand_as(x), x, _part(strength))


def _equalise(x: Tensor, _: Tensor) -> Tensor:
    """Each value as the share of pixels up to it, among those of its channel above the lowest value."""
    flat = x.flatten(2).contiguous()
    ranked = flat.sort(2).values
    upto = torch.searchsorted(ranked, flat, right=True).float()
    lowest = (flat == ranked[..., :1]).sum(2, keepdim=True).float()
    several = flat.shape[2] - lowest
    return torch.where(several > 0, (upto - lowest) / several.clamp(min=1), flat).view_as(x)


def _posterise(x: Tensor, strength: Tensor) -> Tensor:
    """Pixels reduced to 4 to 8 bits."""
    step = 2.0 ** (4 - (5 * strength).floor())
    return (x * 255 / step).floor() * step / 255


def _sharpness(x: Tensor, strength: Tensor) -> Tensor:
    """A blend with a blur whose kernel has 5/13 at its centre; the border is not blurred."""
    blurred = x.clone()
    blurred[:, :, 1:-1, 1:-1] = (9 * F.avg_pool2d(x, 3, 1) + 4 * x[:, :, 1:-1, 1:-1]) / 13
    return torch.lerp(blurred, x, _part(strength))


def _solarise(x: Tensor, strength: Tensor) -> Tensor:
    return torch.where(x < strength, x, 1 - x)


def _affine(matrix: Callable[[Tensor], tuple[tuple, tuple]]) -> Callable[[Tensor, Tensor], Tensor]:
    """An operation that samples images through an affine map; `matrix` makes its rows from values in [-1, 1)."""

    def apply(x: Tensor, strength: Tensor) -> Tensor:
        signed = 2 * strength.view(-1) - 1
        rows = [torch.stack([torch.zeros_like(signed) + value for value in row], 1) for row in matrix(signed)]
        grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, align_corners=False)

    return apply


def _rotation(signed: Tensor) -> tuple[tuple, tuple]:
    angle = torch.deg2rad(30 * signed)
    return (angle.cos(), -angle.sin(), 0), (angle.sin(), angle.cos(), 0)


RANDAUGMENT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "identity": lambda x, _: x,
    "autocontrast": _autocontrast,
    "brightness": _brightness,
    "colour": _colour,
    "contrast": _contrast,
    "equalise": _equalise,
    "posterise": _posterise,
    "sharpness": _sharpness,
    "solarise": _solarise,
    "rotate": _affine(_rotation),
    "shear x": _affine(lambda s: ((1, 0.3 * s, 0), (0, 1, 0))),
    "shear y": _affine(lambda s: ((1, 0, 0), (0.3 * s, 1, 0))),
    "translate x": _affine(lambda s: ((1, 0, 0.6 * s), (0, 1, 0))),  # coordinates span 2, so up to 30 %
    "translate y": _affine(lambda s: ((1, 0, 0), (0, 1, 0.6 * s))),
}
