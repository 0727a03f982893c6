"""A dataset after loading and before, when only its labels are known; and how to keep a part of it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raysim.errors import InputError

HELD_OUT = 6  # without a test split, one image in six is held out for it
MAX_SIDE = 4096  # pixels of an image


@dataclass(frozen=True)
class Split:
    """Images and their labels."""

    x: np.ndarray  # uint8 [N, C, H, W], C-contiguous
    y: np.ndarray  # int64 [N]


@dataclass(frozen=True)
class Columns:
    """The columns of a table to read; None: those with the usual names, and none with the clients."""

    image: str | None = None
    label: str | None = None
    client: str | None = None


USUAL = Columns()


@dataclass(frozen=True)
class Dataset:
    """A loaded dataset."""

    name: str
    class_names: tuple[str, ...]
    train: Split
    test: Split
    notes: tuple[str, ...] = ()  # one line each, shown to the user
    clients: np.ndarray | None = None  # whose each training image is, where a column of the data says so
    digest: str | None = None  # of data that was in memory: nothing else tells it from other data

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return self.train.x.shape[1:]


@dataclass(frozen=True)
class Source:
    """One split before its images are read: all labels, and a function that reads the images of some rows.

    Rows are chosen by their labels before reading, so that a tenth of CelebA costs a tenth of the time and memory.
    """

    y: np.ndarray  # int64 [N]
    read: Callable[[np.ndarray, int | None], np.ndarray]  # (ascending rows, image size) -> uint8 [rows, C, H, W]
    clients: np.ndarray | None = None  # whose each row is, where that was asked for


@dataclass(frozen=True)
class Found:
    """A dataset that a loader has found."""

    class_names: tuple[str, ...]
    train: Source
    test: Source | None  # None: a part of train is held out for it
    notes: tuple[str, ...] = ()  # one line each, shown to the user
    name: str | None = None  # if it is not the one that was asked for
    image_size: int | None = None  # unless the user gives another
    sized: bool = False  # whether the splits already have the sizes that were asked for
    has_columns: bool = False  # whether it was read from the columns that were asked for
    digest: str | None = None  # of data that was in memory


def home_path(name: str | Path) -> Path:
    """The path with ~ replaced by the home folder; ~somebody stays as it is where nobody is called that."""
    return Path(os.path.expanduser(name))


def wrong(message: str) -> InputError:
    """The error for data that cannot be used; whatever file names or library messages it quotes is on one line."""
    return InputError(message)


def check_labels(y: np.ndarray, classes: int, where: str, first: int = 0) -> None:
    """Raise an InputError unless all labels are in first..first+classes-1; `where` names their file for the error."""
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


def hold_out(
    y: np.ndarray, rng: np.random.Generator, counts: tuple[int, ...] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Rows for training and for testing: a sixth of each class is for testing, at least one if it has two images.

    With `counts`, so many of each class are for training, and the rest is for testing.
    """
    held = []
    for c in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == c))
        if counts is None:
            held.append(rows[: max(len(rows) // HELD_OUT, min(len(rows) - 1, 1))])
        else:
            held.append(rows[counts[c] if c < len(counts) else 0 :])
    test = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(y)), test), test
