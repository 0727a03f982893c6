"""Folders of Parquet files in the Hugging Face image layout: a column of encoded images and one of labels.

Only those two columns are read, as plain Arrow types: nothing in a file is unpickled, and no extension type is used.
They are read in small batches, and their sizes are checked before: a file of kilobytes can hold gigabytes of copies.
The name of a file (train-00000-of-00001.parquet, test…, validation…) or of its folder (train/, test/) gives the split.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysim.data import images
from raysim.data.dataset import USUAL, Columns, Found, Source, check_labels, wrong
from raysim.data.loaders.base import Loader, Request
from raysim.data.memory import check_fits

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("fine_label", "label")  # CIFAR-100 has a coarse one too
MAX_ROWS = 100_000_000  # of a file
LABELS_AT_ONCE, IMAGES_AT_ONCE = 1_000_000, 64  # rows
BUFFER = 2**20  # bytes of a column read from the file at once
TEST_SPLITS = ("test", "val")  # the first one found is used; val stands for validation and valid too


@dataclass(frozen=True)
class _File:
    """A Parquet file with its labels."""

    path: Path
    images: str  # the column to read: that of the bytes, within a struct if need be
    y: np.ndarray
    class_names: tuple[str, ...] | None
    clients: np.ndarray | None = None


class ParquetFolder(Loader):
    """A loader of folders of Parquet files."""

    turn = 2

    def find(self, request: Request) -> Found | None:
        folder = request.folder
        if folder is None:
            return None
        if has_files(folder):
            return replace(find_splits(folder, columns=request.columns), name=folder.resolve().name)
        if (inner := next((file.parent for file in sorted(folder.glob("*/*.parquet"))), None)) is not None:
            raise wrong(f"{folder}: the Parquet files are in {inner}; give that folder")
        return None


def has_files(folder: Path) -> bool:
    """Whether Parquet files are in the folder, or in a folder of a split in it."""
    return any(folder.glob("*.parquet")) or any(_files(folder, "train"))


def find_splits(
    folder: Path,
    class_names: tuple[str, ...] | None = None,
    label_columns: tuple[str, ...] = LABEL_COLUMNS,
    first_label: int = 0,
    columns: Columns = USUAL,
) -> Found:
    """Return the splits of a folder for which `has_files`.

    Class names are as given, or from the files, or numbers. Of a dataset that numbers its classes from `first_label`,
    files that number them from 0 are understood too.
    """
    test_paths = next((files for split in TEST_SPLITS if (files := _files(folder, split))), [])
    train_paths = _files(folder, "train") or [f for f in sorted(folder.glob("*.parquet")) if f not in test_paths]
    if not train_paths:
        raise wrong(f"{folder}: no train*.parquet beside {test_paths[0].name}; put the training files there")
    label_columns = (columns.label,) if columns.label else label_columns
    train = [_open(path, label_columns, columns) for path in train_paths]
    test = [_open(path, label_columns, replace(columns, client=None)) for path in test_paths]
    class_names = class_names or next((file.class_names for file in train if file.class_names), None)
    if class_names is None:
        class_names = _numbered(train + test)
    first = first_label if min(file.y.min() for file in train + test) >= first_label else 0
    for file in train + test:
        check_labels(file.y, len(class_names), str(file.path), first)
    notes: tuple[str, ...] = ()
    if test and not test[0].path.relative_to(folder).as_posix().startswith("test"):
        notes = (f"{folder}: no test split; the validation split is the test split",)
    return Found(class_names, _source(train, first), _source(test, first) if test else None, notes, has_columns=True)


def _files(folder: Path, split: str) -> list[Path]:
    return sorted([*folder.glob(f"{split}*.parquet"), *folder.glob(f"{split}*/*.parquet")])


def _open(path: Path, label_columns: tuple[str, ...], columns: Columns) -> _File:
    """Check the file's columns and read its labels, and its clients if a column of them is asked for."""
    file = _reader(path)
    schema = file.schema_arrow
    label = _column(path, schema, label_columns, "labels")
    image = _column(path, schema, (columns.image,) if columns.image else IMAGE_COLUMNS, "images")
    kind = schema.field(image).type
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind, column = kind.field("bytes").type, f"{image}.bytes"
    else:
        column = image
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise wrong(f"{path}: column {image} is {kind}; encoded images are needed, as binary or struct with bytes")
    if not (pa.types.is_integer(schema.field(label).type) or pa.types.is_boolean(schema.field(label).type)):
        raise wrong(f"{path}: column {label} is {schema.field(label).type}; labels must be integers from 0")
    client = _column(path, schema, (columns.client,), "clients") if columns.client else None
    _check_sizes(path, file.metadata, {label, column, *([client] if client else [])})
    clients = _clients(path, file, client) if client else None
    return _File(path, column, _labels(path, file, label), _class_names(schema, label), clients)


def _clients(path: Path, file: pq.ParquetFile, column: str) -> np.ndarray:
    """Return the column of clients: whole numbers, or texts."""
    kind = file.schema_arrow.field(column).type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise wrong(f"{path}: column {column} is {kind}; clients must be whole numbers or texts")
    target = pa.int64() if pa.types.is_integer(kind) else pa.large_string()
    found: list[np.ndarray] = []
    for batch in _batches(path, file, column, LABELS_AT_ONCE):
        if batch.null_count:
            row = sum(len(part) for part in found) + pc.index(batch.is_null(), True).as_py()
            raise wrong(f"{path}: row {row}: no client in column {column}; fill or remove that row")
        found.append(_guarded(path, lambda batch=batch: batch.cast(target).to_numpy(zero_copy_only=False)))
    return np.concatenate(found)


def _check_sizes(path: Path, metadata: Any, columns: set[str]) -> None:
    """Refuse a file whose own description says that it is too much to read, before any of it is read."""
    rows = metadata.num_rows
    if not rows:
        raise wrong(f"{path}: no rows; remove the file")
    if not 0 < rows <= MAX_ROWS:
        raise wrong(f"{path}: {rows:,} rows; at most {MAX_ROWS:,}: split it or replace it")
    check_fits(3 * 8 * rows, f"{path}: {rows:,} labels", "split the file")  # as read, as int64, and all together
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(number)
            if chunk.path_in_schema in columns:
                # A page is in memory as a whole, compressed and not; at worst there is only one, of up to 2 GiB.
                page = min(chunk.total_uncompressed_size, 2**31)
                check_fits(2 * page, f"{path}: column {chunk.path_in_schema} of row group {group}", "split the file")


def _labels(path: Path, file: pq.ParquetFile, label: str) -> np.ndarray:
    """Return the column of labels, int64 [rows]."""
    y, done = np.empty(file.metadata.num_rows, np.int64), 0
    for batch in _batches(path, file, label, LABELS_AT_ONCE):
        if batch.null_count:
            row = done + pc.index(batch.is_null(), True).as_py()
            raise wrong(f"{path}: row {row}: no label in column {label}; fill or remove that row")
        part = _guarded(path, lambda batch=batch: batch.cast(pa.int64()).to_numpy())
        if done + len(part) > len(y):
            break
        y[done : done + len(part)] = part
        done += len(part)
    if done != len(y):
        raise wrong(f"{path}: not as many rows as it says ({len(y)}); replace or remove it")
    return y


def _batches(path: Path, file: pq.ParquetFile, column: str, size: int, group: int | None = None) -> Iterator[pa.Array]:
    """Yield one column of the file, or of one row group, in batches of at most so many rows."""
    groups = None if group is None else [group]
    batches = _guarded(path, lambda: file.iter_batches(size, row_groups=groups, columns=[column], use_threads=False))
    while (batch := _guarded(path, next, batches, None)) is not None:
        yield batch.column(0)


def _reader(path: Path, repeated: str | None = None) -> pq.ParquetFile:
    """Open the file. Values of the column `repeated` that occur again stay one copy, as they are in the file."""
    options = {"page_checksum_verification": True, "buffer_size": BUFFER, "pre_buffer": False}
    return _guarded(path, lambda: pq.ParquetFile(path, read_dictionary=[repeated] if repeated else None, **options))


def _guarded(path: Path, action: Callable[..., Any], *arguments: object) -> Any:
    """Return the action's result; turn an error of Arrow into an InputError of one line with the file's name."""
    try:
        return action(*arguments)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise wrong(f"{path}: not a readable Parquet file ({error}); replace or remove it") from error


def _column(path: Path, schema: pa.Schema, names: tuple[str, ...], content: str) -> str:
    for name in names:
        if schema.get_field_index(name) >= 0:  # -1 also for a name that occurs twice
            return name
    raise wrong(f"{path}: no column {' or '.join(names)} with the {content}; it has {', '.join(schema.names)}")


def _class_names(schema: pa.Schema, label: str) -> tuple[str, ...] | None:
    """Return the class names that Hugging Face's `datasets` writes into the schema; None if missing or malformed."""
    try:
        names = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    well_formed = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    return tuple(names) if well_formed else None


def _numbered(files: list[_File]) -> tuple[str, ...]:
    """Return class names 0, 1, … up to the largest label.

    Some may be unused, but there cannot be more classes than images.
    """
    largest, samples = max(int(file.y.max()) for file in files), sum(len(file.y) for file in files)
    if largest >= samples:
        path = next(file.path for file in files if file.y.max() == largest)
        raise wrong(f"{path}: label {largest}, with {samples} images in all; labels must number the classes from 0")
    return tuple(str(label) for label in range(largest + 1))


def _source(files: list[_File], first_label: int) -> Source:
    y = np.concatenate([file.y for file in files]) - first_label

    def read(rows: np.ndarray, image_size: int | None) -> np.ndarray:
        return images.decode(_encoded(files, rows), len(rows), image_size)

    if any(file.clients is None for file in files):
        return Source(y, read)
    clients = np.concatenate([file.clients for file in files])
    if len(clients) != len(y):
        raise wrong(f"{files[0].path}: fewer clients than labels; replace or remove it")
    return Source(y, read, clients)


def _encoded(files: list[_File], rows: np.ndarray) -> Iterator[tuple[str, bytes]]:
    """Yield (name for errors, bytes) of the rows, counted over all files; few of them are in memory at a time."""
    start = 0
    for file in files:
        mine = rows[(rows >= start) & (rows < start + len(file.y))] - start
        start += len(file.y)
        if len(mine):
            yield from _encoded_in(file, mine)


def _encoded_in(file: _File, rows: np.ndarray) -> Iterator[tuple[str, bytes]]:
    reader, start, given = _reader(file.path, file.images), 0, 0
    for group in range(reader.num_row_groups):
        stop = start + reader.metadata.row_group(group).num_rows
        if not ((rows >= start) & (rows < stop)).any():
            start = stop
            continue
        for values in _batches(file.path, reader, file.images, IMAGES_AT_ONCE, group):
            if pa.types.is_struct(values.type):
                values = pc.struct_field(values, "bytes")
            for row in rows[(rows >= start) & (rows < min(stop, start + len(values)))]:
                yield f"{file.path}: row {row}", _image(file.path, values, row - start, row)
                given += 1
            start += len(values)
        start = stop
    if given != len(rows):
        raise wrong(f"{file.path}: fewer images than labels; replace or remove it")


def _image(path: Path, values: pa.Array, index: int, row: int) -> bytes:
    """Return the bytes of one image, unless they are missing or too many."""
    value = _guarded(path, lambda: values[int(index)])
    if pa.types.is_dictionary(values.type):
        value = value.value if hasattr(value, "value") else value
    buffer = value.as_buffer() if value.is_valid else None
    if buffer is None:
        raise wrong(f"{path}: row {row}: no image bytes; images stored outside the file are not read: embed them")
    if buffer.size > images.MAX_BYTES:
        raise wrong(
            f"{path}: row {row}: {buffer.size:,} bytes; an image may have at most {images.MAX_BYTES:,}: shrink it"
        )
    return buffer.to_pybytes()
