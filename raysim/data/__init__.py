"""Datasets, all in one form: uint8 images and integer labels, in a training and a test split.

`load` finds one by name or path: `shapes` is made here, the others are read from files, and nothing from a file is
trusted until it is decoded. Torch is not imported unless torchvision must read the files.
"""

from pathlib import Path

import numpy as np

from raysim.data import folders, images, named, parquet, shapes
from raysim.data.dataset import HELD_OUT, Dataset, Found, Source, Split, hold_out, keep_stratified, wrong
from raysim.rng import stream
from raysim.settings import nearest

__all__ = ["Dataset", "Split", "catalogue", "load"]


def load(
    name: str,
    *,
    data: str | Path | None = None,
    download: bool = False,
    image_size: int | None = None,
    train_size: int | None = None,
    fraction: float | None = None,
    test_size: int | None = None,
    seed: int = 0,
) -> Dataset:
    """A dataset by name (`catalogue` has them all) or by the path of a folder of Parquet files or images.

    `data` is the folder to look for named ones in (default: RAYSIM_DATA, or the folder data). `train_size` or
    `fraction`, and `test_size`, keep a seeded, stratified part in its order; of `shapes` they say how many to make.

    >>> dataset = load("shapes", train_size=50, test_size=10)
    >>> dataset.train.x.shape, dataset.classes
    ((50, 3, 32, 32), 10)
    """
    _check(image_size, train_size, fraction, test_size)
    if name == "shapes":
        if fraction is not None:
            train_size = max(1, round(fraction * shapes.TRAIN_SIZE))
        sizes = {"train": train_size or shapes.TRAIN_SIZE, "test": test_size or shapes.TEST_SIZE}
        made = [shapes.generate(split, count, seed) for split, count in sizes.items()]
        return Dataset(name, shapes.CLASS_NAMES, *(Split(images.resize(x, image_size), y) for x, y in made))
    if name in named.DATASETS:
        found = named.find(name, data, download)
        image_size = image_size or named.DATASETS[name].image_size
    else:
        folder = _folder(name, data)
        name = folder.resolve().name
        found = parquet.find(folder) if parquet.has_files(folder) else folders.find(folder)
    return _read(name, found, image_size, train_size, fraction, test_size, seed)


def catalogue() -> list[tuple[str, str]]:
    """Every name, with one line about it and how to get it."""
    number = f"{shapes.TRAIN_SIZE:,} + {shapes.TEST_SIZE:,} or as many as asked for"
    built_in = f"figures on cluttered backgrounds, {number}, RGB 32x32, 10 classes; built in"
    others = [(name, f"{dataset.about}; from --data DIR, or --download") for name, dataset in named.DATASETS.items()]
    return [("shapes", built_in), *others]


def _check(image_size, train_size, fraction, test_size) -> None:
    if train_size is not None and fraction is not None:
        raise wrong("--train-size and --fraction both say how much of the training split to keep; give one of them")
    if fraction is not None and not 0 < fraction <= 1:
        raise wrong(f"--fraction {fraction}: give a share above 0 and up to 1")
    for flag, value in (("--train-size", train_size), ("--test-size", test_size)):
        if value is not None and value < 1:
            raise wrong(f"{flag} {value}: give 1 or more")
    if image_size is not None and not 1 <= image_size <= images.MAX_SIDE:
        raise wrong(f"--image-size {image_size}: give 1 to {images.MAX_SIDE}")


def _folder(name: str, data: str | Path | None) -> Path:
    """The folder a path means; or, for any other word, an error with the name it may have been."""
    path = Path(name).expanduser()
    if not path.is_dir() and data is not None and (Path(data).expanduser() / name).is_dir():
        path = Path(data).expanduser() / name
    if path.is_dir():
        inner = next((file.parent for file in sorted(path.glob("*/*.parquet"))), None)
        if inner is not None and not parquet.has_files(path):
            raise wrong(f"{path}: the Parquet files are in {inner}; give that folder")
        return path
    if path.exists():
        raise wrong(f"{path}: a file; give the folder it is in")
    if "/" in name or "\\" in name:
        raise wrong(f"{name}: no such folder; give a folder of Parquet files or images, or one of: {_names()}")
    guess = nearest(name.lower().replace("-", "_"), ["shapes", *named.DATASETS], f"; there are {_names()}.")
    raise wrong(f"--dataset: unknown dataset '{name}'{guess} A folder goes by its path")


def _names() -> str:
    return ", ".join(["shapes", *named.DATASETS])


def _read(name, found: Found, image_size, train_size, fraction, test_size, seed) -> Dataset:
    """Chooses the rows by their labels, then reads only those."""
    notes, test_source = found.notes, found.test
    train_rows = np.arange(len(found.train.y))
    if test_source is None:
        train_rows, test_rows = hold_out(found.train.y, stream(seed, "data/held-out"))
        test_source = found.train
        if not len(test_rows):
            raise wrong(f"{name}: one image per class leaves none to test on; add images or a test split")
        notes += (f"{name}: no test split; a seeded 1/{HELD_OUT} of each class ({len(test_rows)} images) is held out",)
    else:
        test_rows = np.arange(len(test_source.y))
    if fraction is not None:
        train_size = max(1, round(fraction * len(train_rows)))
    train_rows = _keep(found.train, train_rows, train_size, "train", seed)
    test_rows = _keep(test_source, test_rows, test_size, "test", seed)
    train, test = found.train.read(train_rows, image_size), test_source.read(test_rows, image_size)
    if train.shape[1:] != test.shape[1:]:
        if image_size is None:
            raise wrong(f"{name}: training images are {_size(train)}, test images {_size(test)}; give --image-size N")
        train, test = (np.repeat(x, 3, axis=1) if x.shape[1] == 1 else x for x in (train, test))
    return Dataset(
        name,
        found.class_names,
        Split(np.ascontiguousarray(train), found.train.y[train_rows]),
        Split(np.ascontiguousarray(test), test_source.y[test_rows]),
        notes,
    )


def _keep(source: Source, rows: np.ndarray, size: int | None, split: str, seed: int) -> np.ndarray:
    if size is None:
        return rows
    if size > len(rows):
        raise wrong(f"--{split}-size {size}: there are only {len(rows)} {split} images; give that many or fewer")
    return rows[keep_stratified(source.y[rows], size, stream(seed, f"data/{split}-size"))]


def _size(x: np.ndarray) -> str:
    return f"{x.shape[3]}x{x.shape[2]} {'grey' if x.shape[1] == 1 else 'RGB'}"
