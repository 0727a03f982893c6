"""The dataset `shapes`: figures on cluttered backgrounds, drawn with NumPy, so that raysim runs without a download.

32x32 RGB, ten classes, as many images as asked for. They are drawn in blocks of 1,000, each with exactly 100 images of
every class in random order. A block depends only on (seed, split, number of the block), so the first images are the
same however many are asked for. Only + - * / sqrt, comparisons and integer arithmetic are used, element by element:
IEEE 754 fixes the last bit of all of them, so the bytes are the same on every machine.
"""

from collections.abc import Callable

import numpy as np

from raysim.data import images
from raysim.data.dataset import Found
from raysim.data.loaders.base import Loader, Request
from raysim.data.memory import check_images_fit
from raysim.rng import stream

SIZE = 32
TRAIN_SIZE, TEST_SIZE = 10_000, 2_000  # by default
BLOCK = 1_000

# How hard the images are: tuned so that the CNN of HFMDS-FL reaches about 90 % after training on 10,000 of them.
RADIUS = (7.0, 12.0)  # pixels
OFF_CENTRE = 3.0  # pixels, each way
TURN = 0.25  # tangent of half the largest angle: 28 degrees each way
CONTRAST = 24  # of 255: the figure is at least this much lighter than its background
LIGHT = 96  # it is up to this much lighter still in all channels, and up to this much in each of them
NOISE = 40  # the largest deviation of a pixel
LINE, DOT = (0.3, 3.0), (0.5, 4.0)  # pixels: half the width of the line and of the three dots before the figure

Figure = Callable[[np.ndarray, np.ndarray], np.ndarray]

# Pixel centres, counted from the middle of the image.
COLUMNS = (np.arange(SIZE, dtype=np.float32) - (SIZE - 1) / 2).reshape(1, 1, SIZE)
ROWS = COLUMNS.reshape(1, SIZE, 1)


# The figures: the approximate distance of (u, v) from the edge, negative inside, in units of the figure's radius.
# v points down.


def _disc(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.sqrt(u * u + v * v) - 0.85


def _ring(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.abs(np.sqrt(u * u + v * v) - 0.7) - 0.2


def _square(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(u), np.abs(v)) - 0.75


def _frame(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.abs(np.maximum(np.abs(u), np.abs(v)) - 0.62) - 0.18


def _triangle(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(u) * 0.866 - v * 0.5, v) - 0.5


def _star(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the outline of a star: two reflections map all five points onto one, whose edge is straight."""
    u = np.abs(u)
    for across, down in ((0.809017, 0.587785), (-0.809017, 0.587785)):
        beyond = 2 * np.maximum(across * u + down * v, 0)
        u, v = u - beyond * across, v - beyond * down
    return np.abs(u) * 0.89 - v * 0.456 - 0.45


def _cross(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    u, v = np.abs(u), np.abs(v)
    return np.maximum(np.minimum(u, v) - 0.26, np.maximum(u, v) - 0.92)


def _moon(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    bite = u - 0.5
    return np.maximum(np.sqrt(u * u + v * v) - 0.95, 0.75 - np.sqrt(bite * bite + v * v))


def _bars(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.maximum(np.abs(np.abs(u) - 0.5) - 0.22, np.abs(v) - 0.8)


def _arrow(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    u = np.abs(u)
    return np.maximum(np.abs(v + 0.4 - u) * 0.7071 - 0.24, u - 0.85)


FIGURES: dict[str, Figure] = {
    "disc": _disc,
    "ring": _ring,
    "square": _square,
    "frame": _frame,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "moon": _moon,
    "bars": _bars,
    "arrow": _arrow,
}
CLASS_NAMES = tuple(FIGURES)


class Shapes(Loader):
    """A loader of the built-in dataset: as many images as asked for."""

    turn = 0

    def find(self, request: Request) -> Found | None:
        if request.name != "shapes":
            return None
        train_size = request.train_size or TRAIN_SIZE
        if request.fraction is not None:
            train_size = max(1, round(request.fraction * TRAIN_SIZE))
        sizes = {"train": train_size, "test": request.test_size or TEST_SIZE}
        side = max(SIZE, request.image_size or SIZE)
        check_images_fit(sum(sizes.values()), (3, side, side))
        train, test = (images.in_memory(*generate(split, count, request.seed)) for split, count in sizes.items())
        return Found(CLASS_NAMES, train, test, sized=True)

    def catalogue(self) -> dict[str, str]:
        number = f"{TRAIN_SIZE:,} + {TEST_SIZE:,} or as many as asked for"
        return {"shapes": f"figures on cluttered backgrounds, {number}, RGB 32x32, 10 classes; built in"}


def generate(split: str, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the first `count` images of a split, uint8 [count, 3, 32, 32], and their labels, int64 [count].

    >>> x, y = generate("train", 20)
    >>> bool((generate("train", 1_020)[0][:20] == x).all())
    True
    """
    x, y = np.empty((count, 3, SIZE, SIZE), np.uint8), np.empty(count, np.int64)
    for block, start in enumerate(range(0, count, BLOCK)):
        block_x, block_y = _draw_block(stream(seed, f"shapes/{split}", block))
        x[start : start + BLOCK], y[start : start + BLOCK] = block_x[: count - start], block_y[: count - start]
    return x, y


def _draw_block(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw the images and labels of a block class by class: a hundred images fit into the processor's cache."""
    y = rng.permutation(np.repeat(np.arange(len(FIGURES)), BLOCK // len(FIGURES)))
    x = np.empty((BLOCK, 3, SIZE, SIZE), np.uint8)
    for label, figure in enumerate(FIGURES.values()):
        members = np.flatnonzero(y == label)
        x[members] = _draw(rng, figure, len(members))
    return x, y


def _draw(rng: np.random.Generator, figure: Figure, n: int) -> np.ndarray:
    """Draw n images of one class, uint8 [n, 3, 32, 32]."""

    def uniform(low: float, high: float) -> np.ndarray:
        return low + (high - low) * rng.random((n, 1, 1), dtype=np.float32)

    # The figure: pixels in its own coordinates, which are shifted, turned and scaled.
    radius, half = uniform(*RADIUS), uniform(-TURN, TURN)
    cos, sin = (1 - half * half) / (1 + half * half), 2 * half / (1 + half * half)
    column, row = COLUMNS - uniform(-OFF_CENTRE, OFF_CENTRE), ROWS - uniform(-OFF_CENTRE, OFF_CENTRE)
    u, v = (cos / radius) * column + (sin / radius) * row, (cos / radius) * row - (sin / radius) * column
    inside = _coverage(figure(u, v) * radius)

    # The clutter: a line across the image, in any direction, and three square dots.
    across, down = uniform(-1, 1), uniform(-1, 1)
    length = np.sqrt(across * across + down * down) + 1e-6
    along = (across / length) * COLUMNS + (down / length) * ROWS
    outside = np.abs(along - uniform(-12, 12)) - uniform(*LINE)
    for _ in range(3):
        dot = np.maximum(np.abs(COLUMNS - uniform(-15, 15)), np.abs(ROWS - uniform(-15, 15))) - uniform(*DOT)
        np.minimum(outside, dot, out=outside)
    clutter = _coverage(outside)
    shade = (along * 2.8 + 64).astype(np.int16)  # in 0..128: the background changes its colour along the line

    # Four colours per image, the background's dark.
    background, second, light, mess = _bytes(rng, 4, n, 3).astype(np.int16)
    background = background * 3 // 8
    second = np.clip(background + second // 4 - 32, 0, 255)
    lighter = np.clip(background + CONTRAST + (light[:, :1] * LIGHT >> 8) + (light[:, ::-1] * LIGHT >> 8), 0, 255)
    mess = np.clip(background + mess * 3 // 4, 0, 255)

    noise = _bytes(rng, 2, 3, n, SIZE, SIZE)
    drawn = np.empty((n, 3, SIZE, SIZE), np.uint8)
    for channel in range(3):
        pixels = background[:, channel].reshape(n, 1, 1)
        for mask, colours in ((shade, second), (inside, lighter), (clutter, mess)):
            pixels = pixels + ((colours[:, channel].reshape(n, 1, 1) - pixels) * mask >> 7)
        deviation = noise[0, channel].astype(np.int16) + noise[1, channel] - 255  # triangular, in -255..255
        drawn[:, channel] = np.clip(pixels + (deviation * NOISE >> 8), 0, 255)
    return drawn


def _bytes(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw uint8 values. Half of the time goes into the noise, and this is four times as fast as `rng.bytes`."""
    count = int(np.prod(shape))
    return rng.bit_generator.random_raw(-(-count // 8)).astype("<u8", copy=False).view(np.uint8)[:count].reshape(shape)


def _coverage(outside: np.ndarray) -> np.ndarray:
    """Return how much of a pixel is covered, in 0..128, from its distance to an edge.

    Times a colour, it fits into int16.
    """
    return np.clip(64 - outside * 128, 0, 128).astype(np.int16)
