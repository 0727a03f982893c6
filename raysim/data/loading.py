"""Loading a dataset: the first loader that knows it finds it, then only the images to be kept are read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from raysim.data.dataset import (
    HELD_OUT,
    MAX_SIDE,
    USUAL,
    Dataset,
    Found,
    Source,
    Split,
    hold_out,
    home_path,
    keep_stratified,
    wrong,
)
from raysim.data.loaders import Request, all_loaders, catalogue
from raysim.data.memory import check_images_fit
from raysim.errors import InputError
from raysim.rng import stream
from raysim.settings import Given, nearest


def load(name: str, **options: Any) -> Dataset:
    """A dataset by name (`catalogue` has them all), by the path of a folder of Parquet files or images, or an own one.

    Options are those of a `Request`. `data` is the folder to look for named ones in (default: RAYSIM_DATA, or the
    folder data). `train_size` or `fraction`, and `test_size`, keep a seeded part with the same share of every class, in
    its order; of `shapes`, so many are generated. Without a test split, a sixth of each class is held out for it; or,
    with `training_counts`, all images of a class beyond so many.

    >>> dataset = load("shapes", train_size=50, test_size=10)
    >>> dataset.train.x.shape, dataset.classes
    ((50, 3, 32, 32), 10)
    """
    request = Request(name, _folder(name, options.get("data")), **options)
    _check(request)
    for loader in all_loaders():
        if (found := loader.find(request)) is not None:
            _check_columns(request, found)
            size = request.image_size or found.image_size
            return _read(found, replace(request, name=found.name or name, image_size=size))
    raise _unknown(name)


def _check_columns(request: Request, found: Found) -> None:
    if request.columns != USUAL and not found.has_columns:
        raise wrong(
            f"--dataset {request.name} has no columns to choose from (--image-column, --label-column, "
            "--client-column); Parquet files and own data have"
        )


def _check(request: Request) -> None:
    if request.train_size is not None and request.fraction is not None:
        raise wrong("--train-size and --fraction both say how much of the training split to keep; give one of them")
    if request.fraction is not None and not 0 < request.fraction <= 1:
        raise wrong(f"--fraction {request.fraction}: give a share above 0 and up to 1")
    for flag, value in (("--train-size", request.train_size), ("--test-size", request.test_size)):
        if value is not None and value < 1:
            raise wrong(f"{flag} {value}: give 1 or more")
    if request.image_size is not None and not 1 <= request.image_size <= MAX_SIDE:
        raise wrong(f"--image-size {request.image_size}: give 1 to {MAX_SIDE}")


def _folder(name: str, data: str | Path | None) -> Path | None:
    """The folder that a name means: the path itself, or one in the folder of the datasets."""
    if isinstance(name, Given):
        return None
    path = home_path(name)
    try:
        if not path.is_dir() and data is not None:
            path = home_path(data) / name
        return path if path.is_dir() else None
    except (OSError, ValueError) as error:
        raise wrong(f"--dataset {name}: no path of a folder ({getattr(error, 'strerror', None) or error})") from None


def _unknown(name: str) -> InputError:
    """For a name that is neither a folder nor known to a loader: an error with the name that may have been meant."""
    path, names = home_path(name), [known for known, _ in catalogue()]
    if path.exists():
        return wrong(f"{path}: a file; give the folder it is in")
    if "/" in name or "\\" in name:
        known = ", ".join(names)
        return wrong(f"{name}: no such folder; give a folder of Parquet files or images, or one of: {known}")
    guess = nearest(name.lower().replace("-", "_"), names, f"; there are {', '.join(names)}.")
    return wrong(f"--dataset: unknown dataset '{name}'{guess} A folder goes by its path")


def _read(found: Found, request: Request) -> Dataset:
    """Choose the rows by their labels, then read only those."""
    name, image_size = request.name, request.image_size
    if len(found.class_names) < 2:
        only = f" ('{found.class_names[0]}')" if found.class_names else ""
        raise wrong(f"{name}: all images are of one class{only}; a classifier needs two: give a dataset with more")
    notes, test_source = found.notes, found.test
    train_rows = np.arange(len(found.train.y))
    if test_source is None:
        train_rows, test_rows = hold_out(found.train.y, stream(request.seed, "data/held-out"), request.training_counts)
        test_source = found.train
        if not len(test_rows):
            taken = "the partition's table" if request.training_counts else "one image per class"
            raise wrong(f"{name}: {taken} leaves none to test on; add images or a test split")
        held = (
            "what the partition's table leaves" if request.training_counts else f"a seeded 1/{HELD_OUT} of each class"
        )
        notes += (f"{name}: no test split; {held} ({len(test_rows)} images) is held out",)
    else:
        test_rows = np.arange(len(test_source.y))
    if not found.sized:
        train_size = request.train_size
        if request.fraction is not None:
            train_size = max(1, round(request.fraction * len(train_rows)))
        train_rows = _keep(found.train, train_rows, train_size, "train", request.seed)
        test_rows = _keep(test_source, test_rows, request.test_size, "test", request.seed)
    if image_size is not None:  # else it is known when the first image is read
        check_images_fit(len(train_rows) + len(test_rows), (1, image_size, image_size))
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
        None if found.train.clients is None else found.train.clients[train_rows],
        found.digest,
    )


def _keep(source: Source, rows: np.ndarray, size: int | None, split: str, seed: int) -> np.ndarray:
    if size is None:
        return rows
    if size > len(rows):
        raise wrong(f"--{split}-size {size}: there are only {len(rows)} {split} images; give that many or fewer")
    return rows[keep_stratified(source.y[rows], size, stream(seed, f"data/{split}-size"))]


def _size(x: np.ndarray) -> str:
    return f"{x.shape[3]}x{x.shape[2]} {'grey' if x.shape[1] == 1 else 'RGB'}"
