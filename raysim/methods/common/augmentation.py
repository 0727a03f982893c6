"""Augmentations of FixMatch (Sohn et al., 2020): weak ones flip and shift, strong ones add RandAugment and cutout.

All random draws are made on the host, so that they are the same on every device. The operations run on many batches at
once on their own device; only the draws are transferred, and at once for all batches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from raysim.tensors import upload_all

OPERATIONS = 2  # operations of RandAugment per image
GREY = 0.5  # value of the pixels that cutout covers


def draw_weak(sizes: list[int], like: Tensor, draw: np.random.Generator, flip: bool) -> list[tuple[Tensor, Tensor]]:
    """Draw the rows and columns to read in `shifted`, for batches of these sizes of images like those in `like`.

    Each image is shifted by up to an eighth of its side, reflected at the border, and with `flip` flipped at random.
    """
    drawn = [_draw_shift(count, like, draw, flip) for count in sizes]
    rows, columns = (upload_all(every, like.device) for every in zip(*drawn, strict=True))
    return list(zip(rows, columns, strict=True))


def _draw_shift(count: int, like: Tensor, draw: np.random.Generator, flip: bool) -> tuple[np.ndarray, np.ndarray]:
    height, width = like.shape[2:]
    down, right = (draw.integers(-(side // 8), side // 8 + 1, size=(count, 1)) for side in (height, width))
    flipped = (draw.random((count, 1)) < 0.5) & flip
    rows, columns = _reflected(np.arange(height) - down, height), _reflected(np.arange(width) - right, width)
    return rows, np.where(flipped, columns[:, ::-1], columns)


def shifted(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return each image with its rows and columns in the drawn order."""
    every = torch.arange(len(x), device=x.device)[:, None, None]
    return x.permute(0, 2, 3, 1)[every, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)


@dataclass(frozen=True)
class StrongDraws:
    """The random draws for strong augmentation of some images, on their device."""

    operations: list[list[tuple[Tensor, Tensor]]]  # in turn, and by operation: which images, how strongly
    covered: tuple[Tensor, Tensor]  # which rows and columns of each image the grey square takes
    moved: tuple[Tensor, Tensor]  # which rows and columns of each image are taken before, as in `shifted`


def draw_strong(blocks: list[list[int]], like: Tensor, draw: np.random.Generator, flip: bool) -> list[StrongDraws]:
    """Draw strong augmentations for blocks of batches of these sizes, and upload all of them at once.

    Images are shifted and perhaps flipped first, as in weak augmentation; then each has two operations of RandAugment
    with random strengths, and cutout.
    """
    chosen, strengths, squares, shifts = [], [], [], []
    for sizes in blocks:
        batches = []
        for size in sizes:
            shifts.append(_draw_shift(size, like, draw, flip))
            batches.append(_draw_batch(size, like, draw))
        for turn in range(OPERATIONS):
            which = np.concatenate([batch[0][turn] for batch in batches])
            strength = np.concatenate([batch[1][turn] for batch in batches])
            for i in range(len(RANDAUGMENT)):
                chosen.append(np.flatnonzero(which == i))
                strengths.append(strength[chosen[-1]])
        squares.append([np.concatenate([batch[2][side] for batch in batches]) for side in (0, 1)])
    pairs = iter(zip(upload_all(chosen, like.device), upload_all(strengths, like.device), strict=True))
    covered = zip(*(upload_all(sides, like.device) for sides in zip(*squares, strict=True)), strict=True)
    moved = _by_block(blocks, shifts, like.device)
    return [
        StrongDraws([[next(pairs) for _ in RANDAUGMENT] for _ in range(OPERATIONS)], *sides)
        for sides in zip(covered, moved, strict=True)
    ]


def _by_block(
    blocks: list[list[int]], shifts: list[tuple[np.ndarray, np.ndarray]], device: torch.device
) -> list[tuple[Tensor, Tensor]]:
    """Return the rows and columns of all batches of each block."""
    sizes = [sum(block) for block in blocks]
    rows, columns = (upload_all([np.concatenate(every)], device)[0].split(sizes) for every in zip(*shifts, strict=True))
    return list(zip(rows, columns, strict=True))


def _draw_batch(count: int, like: Tensor, draw: np.random.Generator) -> tuple[list, list, list]:
    """Draw every image's operation and strength for each turn of a batch, and then what cutout covers of it."""
    turns = [
        (draw.integers(len(RANDAUGMENT), size=count), draw.random(count).astype(np.float32)) for _ in range(OPERATIONS)
    ]
    which, strengths = map(list, zip(*turns, strict=True))
    return which, strengths, _draw_square(count, like, draw)


def _draw_square(count: int, like: Tensor, draw: np.random.Generator) -> list[np.ndarray]:
    """Draw the rows and the columns that a square of half the image's side takes of each image.

    Part of it may lie outside.
    """
    firsts = [(side, draw.integers(side, size=(count, 1)) - side // 4) for side in like.shape[2:]]
    return [(np.arange(side) >= first) & (np.arange(side) < first + side // 2) for side, first in firsts]


def augmented(x: Tensor, draws: StrongDraws) -> Tensor:
    """Return the images in [0, 1] after the shifts and operations that were drawn, and cutout."""
    x = shifted(x, *draws.moved)
    for turn in draws.operations:
        changed = x.clone()
        with torch.autocast(x.device.type, enabled=False):  # bf16 is too coarse for positions and pixels
            for operation, (rows, strength) in zip(RANDAUGMENT.values(), turn, strict=True):
                if len(rows):
                    changed[rows] = operation(x[rows], strength.view(-1, 1, 1, 1)).clamp(0, 1)
        x = changed
    rows, columns = draws.covered
    return torch.where((rows[:, :, None] & columns[:, None])[:, None], GREY, x)


def _reflected(at: np.ndarray, side: int) -> np.ndarray:
    """Mirror positions outside 0 … side − 1 at the border pixel, which is not repeated."""
    at = np.abs(at)
    return side - 1 - np.abs(side - 1 - at)


# -- the operations: images [n, channels, height, width] in [0, 1], a strength in [0, 1) for each -------------------


def _part(strength: Tensor) -> Tensor:
    """Return the share of the original image in a blend, from 0.05 to 0.95."""
    return 0.05 + 0.9 * strength


def _grey(x: Tensor) -> Tensor:
    """Return the brightness of each pixel, by the weights of ITU-R 601."""
    return x if x.shape[1] != 3 else (x * _brightness_weights(x.device)).sum(1, keepdim=True)


@lru_cache
def _brightness_weights(device: torch.device) -> Tensor:
    """Return the weights of the brightness, kept since an upload in a local step would hold up the device."""
    return torch.tensor([0.299, 0.587, 0.114], device=device).view(1, 3, 1, 1)


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
    """Equalise the histogram of each channel.

    Every value is replaced by the fraction of the channel's pixels at or below it, not counting the lowest value.
    """
    flat = x.flatten(2).contiguous()
    ranked = flat.sort(2).values
    upto = torch.searchsorted(ranked, flat, right=True).float()
    lowest = (flat == ranked[..., :1]).sum(2, keepdim=True).float()
    several = flat.shape[2] - lowest
    return torch.where(several > 0, (upto - lowest) / several.clamp(min=1), flat).view_as(x)


def _posterise(x: Tensor, strength: Tensor) -> Tensor:
    """Reduce pixels to 4 to 8 bits."""
    step = 2.0 ** (4 - (5 * strength).floor())
    return (x * 255 / step).floor() * step / 255


def _sharpness(x: Tensor, strength: Tensor) -> Tensor:
    """Blend with a blur whose kernel has 5/13 at its centre; the border is not blurred."""
    blurred = x.clone()
    blurred[:, :, 1:-1, 1:-1] = (9 * F.avg_pool2d(x, 3, 1) + 4 * x[:, :, 1:-1, 1:-1]) / 13
    return torch.lerp(blurred, x, _part(strength))


def _solarise(x: Tensor, strength: Tensor) -> Tensor:
    return torch.where(x < strength, x, 1 - x)


def _affine(matrix: Callable[[Tensor], tuple[tuple, tuple]]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return an operation that samples images through an affine map; `matrix` makes its rows from values in [-1, 1)."""

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
