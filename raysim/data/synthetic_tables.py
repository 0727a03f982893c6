"""Shared datasets of synthetic images: immutable Arrow tables in the object store, read without copies on any node."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # pyarrow takes 25 MB, which actors without a shared dataset save
    import pyarrow as pa

SOFT = "soft label"  # name of a column
SERVER = -1  # in place of the source client, where the server made the image


def make_table(images: np.ndarray, labels: np.ndarray, clients: np.ndarray, rounds: np.ndarray) -> pa.Table:
    """A table of float32 images [N, C, H, W], as one tensor column, with label, source client and round of every image.

    Soft labels [N, classes] become a tensor column too, and `label` is then the most likely class.
    """
    import pyarrow as pa

    def tensors(values: np.ndarray) -> pa.Array:
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values, dtype=np.float32))

    soft = {SOFT: tensors(labels)} if labels.ndim == 2 else {}
    columns = {
        "image": tensors(images),
        "label": pa.array(labels.argmax(1) if soft else labels, pa.int64()),
        "client": pa.array(clients, pa.int64()),
        "round": pa.array(rounds, pa.int64()),
    }
    return pa.table(columns | soft)


def gathered(each: list[tuple[int, dict[str, np.ndarray]]], t: int) -> list[list[np.ndarray]]:
    """The columns of make_table, each as one array per client, from uploads with `images` and `labels` in round t."""
    images, labels = ([upload[name] for _, upload in each] for name in ("images", "labels"))
    clients = [np.full(len(upload["labels"]), client) for client, upload in each]
    return [images, labels, clients, [np.full(len(y), t) for y in labels]]


def extended(before: pa.Table | None, columns: list[list[np.ndarray]]) -> pa.Table:
    """A table with the rows of `before`, if there is one, followed by those of the columns (see `gathered`)."""
    if before is not None:
        earlier = images_of(before), labels_of(before), column(before, "client"), column(before, "round")
        columns = [[old, *new] for old, new in zip(earlier, columns, strict=True)]
    return make_table(*map(np.concatenate, columns))


def images_of(table: pa.Table) -> np.ndarray:
    """The images as a read-only view of the table's memory."""
    return _tensors(table, "image")


def _tensors(table: pa.Table, name: str) -> np.ndarray:
    (tensor,) = table.column(name).chunks
    return tensor.to_numpy_ndarray()


def labels_of(table: pa.Table) -> np.ndarray:
    """The labels to train on: the soft labels where there are any, otherwise the classes."""
    return _tensors(table, SOFT) if SOFT in table.column_names else column(table, "label")


def column(table: pa.Table, name: str) -> np.ndarray:
    """A scalar column as a read-only view of the table's memory."""
    (values,) = table.column(name).chunks
    return values.to_numpy()


def table_digest(table: pa.Table) -> str:
    """SHA-256 over the images and their labels, clients and rounds, little-endian."""
    sha = hashlib.sha256(_bytes(images_of(table), "<f4"))
    for name in ("label", "client", "round"):
        sha.update(_bytes(column(table, name), "<i8"))
    if SOFT in table.column_names:
        sha.update(_bytes(labels_of(table), "<f4"))
    return sha.hexdigest()


def _bytes(array: np.ndarray, dtype: str) -> memoryview:
    """An array's bytes in this type; a view where it has it already, since tables may be large."""
    return np.ascontiguousarray(array, dtype).reshape(-1).data


def tables_digest(tables: list[pa.Table]) -> str | None:
    """The digest of one table, or SHA-256 over the digests of several in this order; None without any."""
    digests = [table_digest(table) for table in tables]
    if len(digests) < 2:
        return digests[0] if digests else None
    return hashlib.sha256("".join(digests).encode()).hexdigest()
