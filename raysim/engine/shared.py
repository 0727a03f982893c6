"""Synthetic data all clients share: an immutable Arrow table in the object store, read without copies on any node."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # actors that share nothing do without: 25 MB each
    import pyarrow as pa


def make_table(images: np.ndarray, labels: np.ndarray, clients: np.ndarray, rounds: np.ndarray) -> pa.Table:
    """Float32 images [N, C, H, W] as one tensor column, with label, source client and round of every image."""
    import pyarrow as pa

    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(images, dtype=np.float32))
    columns = {
        "image": tensor,
        "label": pa.array(labels, pa.int64()),
        "client": pa.array(clients, pa.int64()),
        "round": pa.array(rounds, pa.int64()),
    }
    return pa.table(columns)


def images_of(table: pa.Table) -> np.ndarray:
    """The images as a read-only view of the table's memory."""
    (tensor,) = table.column("image").chunks
    return tensor.to_numpy_ndarray()


def column(table: pa.Table, name: str) -> np.ndarray:
    """A scalar column as a read-only view."""
    (values,) = table.column(name).chunks
    return values.to_numpy()


def table_digest(table: pa.Table) -> str:
    """SHA-256 over the images and their labels, clients and rounds, little-endian."""
    sha = hashlib.sha256(images_of(table).astype("<f4", copy=False).tobytes())
    for name in ("label", "client", "round"):
        sha.update(column(table, name).astype("<i8", copy=False).tobytes())
    return sha.hexdigest()
