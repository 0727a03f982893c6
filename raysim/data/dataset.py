"""What a dataset is once it is loaded, what it is before that, and how a part of it is kept."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from raysim.errors import InputError

HELD_OUT = 6  # one image in six becomes the test split where there is none


@dataclass(frozen=True)
class Split:
    x: np.ndarray  # uint8 [N, C, H, W], C-contiguous
    y: np.ndarray  # int64 [N]


@dataclass(frozen=True)
class Dataset:
    name: str
    class_names: tuple[str, ...]
    train: Split
    test: Split
    notes: tuple[str, ...] = ()  # what the run should tell the user, a line each

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return self.train.x.shape[1:]


@dataclass(frozen=True)
class Source:
    """One split before its images are read: every label, and a way to the images of some rows.

    Rows are chosen by their labels first, so that a tenth of CelebA costs a tenth of the time and memory.
    """

    y: np.ndarray  # int64 [N]
    read: Callable[[np.ndarray, int | None], np.ndarray]  # (ascending rows, image size) -> uint8 [rows, C, H, W]


@dataclass(frozen=True)
class Found:
    """What a loader found on disk."""

    class_names: tuple[str, ...]
    train: Source
    test: Source | None  # none: a part of train is held out
    notes: tuple[str, ...] = ()


def wrong(message: str) -> InputError:
    """An error on exactly one line, whatever file names or library messages it quotes."""
    return InputError(" ".join(message.split()))


def check_labels(y: np.ndarray, classes: int, where: str, first: int = 0) -> None:
    """Every label is one of first..first+classes-1; `where` names the file, whose rows count from 0."""
    last = first + classes - 1
    outside = np.flatnonzero((y < first) | (y > last))
    if len(outside):
        row = outside[0]
        raise wrong(f"{where}: row {row}: label {y[row]} is not one of {first}..{last}; correct or remove that row")


def keep_stratified(y: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` ascending rows with the same share of every class, up to rounding (largest remainders first).

    >>> rows = keep_stratified(np.array([0, 1, 0, 1, 0, 1]), 4, np.random.default_rng(0))
    >>> np.bincount(np.array([0, 1, 0, 1, 0, 1])[rows]).tolist()
    [2, 2]
    """
    classes, sizes = np.unique(y, return_counts=True)
    share, rest = np.divmod(sizes * count, len(y))  # integers: the same on every machine
    share[np.argsort(-rest, kind="stable")[: count - share.sum()]] += 1
    kept = [rng.permutation(np.flatnonzero(y == c))[:n] for c, n in zip(classes, share, strict=True)]
    return np.sort(np.concatenate(kept))


def hold_out(y: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rows for training and rows for testing: of each class a sixth, but one at least if it has two images."""
    held = []
    for c in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == c))
        held.append(rows[: max(len(rows) // HELD_OUT, min(len(rows) - 1, 1))])
    test = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(y)), test), test
