"""Data of the user's own in memory: arrays, a torch Dataset, a Hugging Face Dataset. All become a `Found`.

Arrays are (x, y), (x, y, x_test, y_test), or a dict with these names whose other entries are columns, one value per
training image. A dataset is given alone, as a pair (train, test), or as a dict with `train` and `test`.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from raysim.data import images
from raysim.data.dataset import USUAL, Columns, Found, Source, check_labels, wrong
from raysim.data.loaders.parquet import IMAGE_COLUMNS, LABEL_COLUMNS, TEST_SPLITS
from raysim.data.memory import check_images_fit
from raysim.definitions import described

ARRAYS = ("x", "y", "x_test", "y_test")
EXPECTED = (
    "give (x, y, x_test, y_test), a dict with these names, a torch Dataset or a Hugging Face Dataset, alone or as "
    "(train, test)"
)
AT_ONCE = 64  # encoded images in memory
ROUNDED_AT_ONCE = 256  # images
OFF = 1e-3  # of a level: more than arithmetic in float32 is off by


def found(value: Any, where: str, columns: Columns) -> Found:
    """The data in one form; an InputError of one line says what is wrong with it. `where` names it in errors."""
    if isinstance(value, tuple | list) and value and _is_array(value[0]):
        value = dict(zip(ARRAYS, value, strict=False)) if len(value) in (2, 4) else {}
    if isinstance(value, Mapping) and {"x", "y"} <= value.keys():
        return _of_arrays(dict(value), where, columns)
    train, test = _splits(value, where)
    if _is_hugging_face(train):
        return _of_hugging_face(train, test, where, columns)
    if columns != USUAL:
        raise wrong(f"{where}: its items are pairs of image and label, without columns; give a dict or a table")
    arrays = dict(zip(("x", "y"), _read_all(train, where, "item"), strict=True))
    if test is not None:
        arrays |= dict(zip(("x_test", "y_test"), _read_all(test, where, "test item"), strict=True))
    return _of_arrays(arrays, where, columns)


def name_of_data(value: Any) -> str:
    """A name for data in memory, by which it is recorded."""
    if isinstance(value, tuple | list | Mapping):
        return "memory:arrays" if any(map(_is_array, _first_two(value))) else "memory:datasets"
    info = getattr(value, "info", None)
    return f"memory:{getattr(info, 'dataset_name', None) or type(value).__name__}"


# -- which kind it is --------------------------------------------------------------------------------------------------


def _first_two(value: Any) -> list[Any]:
    return list(value.values() if isinstance(value, Mapping) else value)[:2]


def _is_array(value: Any) -> bool:
    """Of NumPy, or a tensor of torch, which need not be imported to see that."""
    return isinstance(value, np.ndarray) or (hasattr(value, "numpy") and hasattr(value, "ndim"))


def _is_hugging_face(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("column_names", "features", "select_columns", "with_format"))


def _splits(value: Any, where: str) -> tuple[Any, Any]:
    """The training split, and the test split or None."""
    if isinstance(value, Mapping) and "train" in value:
        others = [value[key] for split in TEST_SPLITS for key in value if str(key).startswith(split)]
        value = (value["train"], *others[:1])
    splits = value if isinstance(value, tuple | list) else (value,)
    if len(splits) not in (1, 2) or not all(hasattr(s, "__len__") and hasattr(s, "__getitem__") for s in splits):
        raise wrong(f"{where}: {type(value).__name__} is no data that can be used; {EXPECTED}")
    if any(isinstance(split, str | bytes | Mapping) for split in splits):
        raise wrong(f"{where}: {type(splits[0]).__name__} is no data that can be used; {EXPECTED}")
    return splits[0], splits[1] if len(splits) == 2 else None


# -- arrays ------------------------------------------------------------------------------------------------------------


def _of_arrays(arrays: dict[str, Any], where: str, columns: Columns) -> Found:
    if columns.image or columns.label:
        raise wrong(f"{where}: images and labels of arrays are x and y; leave --image-column and --label-column out")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise wrong(f"{where}: x_test and y_test go together; give both or neither")
    given = {key: np.asarray(value) for key, value in arrays.items()}
    read: dict[str, np.ndarray] = {
        key: _pixels(given[key], f"{where}: {key}") for key in ("x", "x_test") if key in given
    }
    labels: dict[str, np.ndarray] = {
        key: _labels(given[key], f"{where}: {key}") for key in ("y", "y_test") if key in given
    }
    for x, y in (("x", "y"), ("x_test", "y_test")):
        if x in read and len(read[x]) != len(labels[y]):
            raise wrong(f"{where}: {len(read[x])} images in {x}, but {len(labels[y])} labels in {y}; give as many")
    clients = _client_column(given, labels["y"], where, columns.client)
    largest, samples = max(int(y.max()) for y in labels.values()), sum(map(len, labels.values()))
    if largest >= samples:
        raise wrong(f"{where}: label {largest}, with {samples} images in all; labels must number the classes from 0")
    sha = hashlib.sha256()
    for key, array in sorted((read | labels | ({"clients": clients} if clients is not None else {})).items()):
        sha.update(f"{key}|{array.dtype}|{array.shape}|".encode())
        sha.update(repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).data)
    train = images.in_memory(read["x"], labels["y"])
    test = images.in_memory(read["x_test"], labels["y_test"]) if "x_test" in read else None
    return Found(
        tuple(map(str, range(largest + 1))), Source(train.y, train.read, clients), test, has_columns=True,
        digest=sha.hexdigest(),
    )  # fmt: skip


def _pixels(x: np.ndarray, where: str) -> np.ndarray:
    """Return images as uint8 [N, C, H, W]; given may be C last or none, and floats from 0 to 1 that are such pixels."""
    if x.ndim == 3:
        x = x[:, None]
    if x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.ndim != 4 or x.shape[1] not in (1, 3) or not x.size:
        raise wrong(f"{where}: shape {x.shape}; give images as [N, C, H, W] or [N, H, W, C] with 1 or 3 channels")
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind not in "biuf":
        raise wrong(f"{where}: {x.dtype}; give pixels as uint8, or as floats from 0 to 1")
    low, high = x.min(), x.max()
    white = 1 if x.dtype.kind in "bf" else 255
    if not (low >= 0 and high <= white):  # also where one is not a number
        raise wrong(f"{where}: values from {low} to {high}; give pixels as uint8, or as floats from 0 to 1")
    pixels = np.empty(x.shape, np.uint8)
    for start in range(0, len(x), ROUNDED_AT_ONCE):
        levels = x[start : start + ROUNDED_AT_ONCE] * np.float64(255 / white)
        rounded = np.rint(levels)
        if x.dtype.kind == "f":
            _check_levels(levels, rounded, max(OFF, 255 * float(np.finfo(x.dtype).eps) / 4), f"{where}: image", start)
        pixels[start : start + ROUNDED_AT_ONCE] = rounded
    return pixels


def _check_levels(levels: np.ndarray, rounded: np.ndarray, tolerance: float, where: str, first: int) -> None:
    """Refuse images, the first of which has this number, whose pixels are not among the 256 levels of a byte."""
    between = np.argwhere(np.abs(levels - rounded) > tolerance)
    if len(between):
        value = levels[tuple(between[0])] / 255
        raise wrong(
            f"{where} {first + between[0][0]} has {value:g}, which is between two of the 256 levels of a pixel "
            "(0, 1/255, …, 1); images are kept as uint8: where that loses nothing you need, round them yourself, "
            "np.rint(255 * x).astype(np.uint8)"
        )


def _labels(y: np.ndarray, where: str) -> np.ndarray:
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer) or not len(y):
        raise wrong(f"{where}: {y.dtype} of shape {y.shape}; give a whole number from 0 for each image")
    y = y.astype(np.int64)
    check_labels(y, int(max(y.max(), 0)) + 1, where)
    return y


def _client_column(given: dict[str, np.ndarray], y: np.ndarray, where: str, column: str | None) -> np.ndarray | None:
    if column is None:
        return None
    if column not in given or column in ARRAYS:
        others = ", ".join(key for key in given if key not in ARRAYS) or "none"
        raise wrong(f"{where}: no column {column} with the clients (--client-column); its columns: {others}")
    if given[column].shape != y.shape:
        raise wrong(f"{where}: {column} has shape {given[column].shape}; give one value for each of {len(y)} images")
    return given[column]


# -- a torch Dataset ---------------------------------------------------------------------------------------------------


def _read_all(dataset: Any, where: str, what: str) -> tuple[np.ndarray, np.ndarray]:
    """All items (image, label) of a dataset, one after the other."""
    count = len(dataset)
    x: np.ndarray | None = None
    y = np.empty(count, np.int64)
    for i in range(count):
        try:
            image, label, *_ = dataset[i]
            pixels, y[i] = np.asarray(image), operator.index(label)
        except Exception as error:
            raise wrong(f"{where}: {what} {i}: {described(error)}") from error
        if x is None:
            check_images_fit(count, (1, 1, pixels.size))
            x = np.empty((count, *pixels.shape), pixels.dtype)
        if (pixels.shape, pixels.dtype) != (x.shape[1:], x.dtype):
            given, first = f"{pixels.dtype} of shape {pixels.shape}", f"{x.dtype} of shape {x.shape[1:]}"
            raise wrong(f"{where}: {what} {i} is {given}, the first {first}; make them alike")
        x[i] = pixels
    if x is None:
        raise wrong(f"{where}: it has no {what}s; give some")
    return x, y


# -- a Hugging Face Dataset --------------------------------------------------------------------------------------------


def _of_hugging_face(train: Any, test: Any, where: str, columns: Columns) -> Found:
    image = _column(train, (columns.image,) if columns.image else IMAGE_COLUMNS, where, "images")
    label = _column(train, (columns.label,) if columns.label else LABEL_COLUMNS, where, "labels")
    client = _column(train, (columns.client,), where, "clients") if columns.client else None
    splits = [train] if test is None else [train, test]
    y = [_labels(_values(split, label, where), f"{where}: column {label}") for split in splits]
    names = getattr(train.features[label], "names", None)
    class_names = tuple(names) if names else tuple(map(str, range(max(int(each.max()) for each in y) + 1)))
    for labels in y:
        check_labels(labels, len(class_names), f"{where}: column {label}")
    readers = [_reader(split, image, where) for split in splits]
    clients = None if client is None else _values(train, client, where)
    sources = [Source(y[0], readers[0], clients), *(Source(y[1], readers[1]) for _ in splits[1:])]
    digest = hashlib.sha256(repr([getattr(split, "_fingerprint", None) for split in splits]).encode()).hexdigest()
    return Found(class_names, sources[0], sources[1] if test is not None else None, has_columns=True, digest=digest)


def _column(dataset: Any, names: tuple[str | None, ...], where: str, content: str) -> str:
    for name in names:
        if name in dataset.column_names:
            return str(name)
    asked = " or ".join(map(str, names))
    raise wrong(f"{where}: no column {asked} with the {content}; it has {', '.join(dataset.column_names)}")


def _values(dataset: Any, column: str, where: str) -> np.ndarray:
    """A column of numbers or texts, without reading the others."""
    values = dataset.select_columns([column]).with_format("arrow")[:].column(column)
    if values.null_count:
        raise wrong(f"{where}: column {column} has rows without a value; fill or remove them")
    return values.to_numpy()


def _reader(dataset: Any, column: str, where: str) -> Callable[[np.ndarray, int | None], np.ndarray]:
    """Reads the images of some rows: encoded ones, or arrays of pixels."""
    table = dataset.select_columns([column]).with_format("arrow")

    def encoded(rows: np.ndarray) -> Iterator[tuple[str, bytes | Path]]:
        for start in range(0, len(rows), AT_ONCE):
            some = rows[start : start + AT_ONCE].tolist()
            for row, value in zip(some, table[some].column(column).to_pylist(), strict=True):
                image = value if isinstance(value, bytes) else (value or {}).get("bytes")
                if image is None and (value or {}).get("path"):
                    image = Path(value["path"])
                if image is None:
                    raise wrong(f"{where}: row {row}: no image in column {column}; fill or remove that row")
                yield f"{where}: row {row}", image

    def read(rows: np.ndarray, size: int | None) -> np.ndarray:
        first = table[[int(rows[0])]].column(column).to_pylist()[0]
        if isinstance(first, list):
            pixels = np.array(table[rows.tolist()].column(column).to_pylist())
            return images.resize(_pixels(pixels, f"{where}: column {column}"), size)
        return images.decode(encoded(rows), len(rows), size)

    return read
