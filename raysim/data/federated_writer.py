"""Writes a dataset and its partition to the object store. Only the driver does this."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raysim.data.dataset import Dataset, Split
from raysim.data.federated import Chunks, FederatedData
from raysim.data.normalisation import Normalisation
from raysim.data.partitions import Partition
from raysim.errors import InputError

CHUNK_BYTES = 32 * 2**20

Put = Callable[[Any], Any]  # an object -> a reference to it


@dataclass(frozen=True)
class Layout:
    """How a run wants its data: how pixels are normalised and how test images are cut into items."""

    normalise: str = "data"  # by the training split's statistics, or `half`: to [-1, 1]
    test_by_client: bool = False  # each client its own test images, or batches of all
    test_batch: int = 500


def write(dataset: Dataset, partition: Partition, layout: Layout, put: Put) -> FederatedData:
    """Store the dataset with each client's samples side by side, and each test batch's."""
    x = dataset.train.x
    normalisation = Normalisation.half(x.shape[1]) if layout.normalise == "half" else Normalisation.of(x)
    order, offsets = None, np.append(np.arange(0, len(dataset.test.y), layout.test_batch), len(dataset.test.y))
    if layout.test_by_client:
        order, offsets = deal_test(dataset.test.y, partition.counts(dataset.train.y, dataset.classes) > 0)
    return FederatedData(
        shape=dataset.shape,
        classes=dataset.classes,
        normalisation=normalisation,
        sizes=partition.sizes,
        clients=chunked(dataset.train, partition.order, partition.offsets, put),
        test=chunked(dataset.test, order, offsets, put),
    )


def deal_test(labels: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Order and offsets of test images by client: of each class a client holds, one client's share of its images.

    `held` is boolean [clients, classes]. The shares of a class do not overlap, unless it has fewer images than there
    are clients.
    """
    taken: list[list[np.ndarray]] = [[] for _ in held]
    for label in range(held.shape[1]):
        rows = np.flatnonzero(labels == label)
        share = max(1, len(rows) // len(held))
        for i, client in enumerate(np.flatnonzero(held[:, label]) if len(rows) else ()):
            taken[client].append(rows[np.arange(i * share, (i + 1) * share) % len(rows)])
    parts = [np.sort(np.concatenate([*t, np.empty(0, np.int64)])) for t in taken]
    return np.concatenate(parts), np.cumsum([0, *(len(p) for p in parts)])


def chunked(split: Split, order: np.ndarray | None, offsets: np.ndarray, put: Put) -> Chunks:
    """Store a split so that item i is rows offsets[i]:offsets[i+1] of it, taken in `order`."""
    row_bytes = max(1, split.x[0].nbytes)
    chunk = np.empty(len(offsets) - 1, dtype=np.int32)
    start, stop = np.empty_like(offsets[1:]), np.empty_like(offsets[1:])
    objects: list[Any] = []
    first = 0
    with row_reader(split.x) as images:
        while first < len(chunk):
            last = int(np.searchsorted(offsets, offsets[first] + CHUNK_BYTES // row_bytes, side="right")) - 1
            last = max(last, first + 1)
            span = slice(offsets[first], offsets[last])
            rows = span if order is None else order[span]
            chunk[first:last] = len(objects)
            start[first:last] = offsets[first:last] - offsets[first]
            stop[first:last] = offsets[first + 1 : last + 1] - offsets[first]
            objects.append(put((images(rows), np.ascontiguousarray(split.y[rows]))))
            first = last
    return Chunks(objects, chunk, start, stop)


@contextmanager
def row_reader(x: np.ndarray) -> Iterator[Callable[[slice | np.ndarray], np.ndarray]]:
    """A function that returns rows of x, side by side.

    Where x is a file that is mapped for reading (`np.load(…, mmap_mode="r")`) they are read from the file, and what is
    in memory of it is given back: so such data is never whole in memory beside its copy in the store.
    """
    source = _mapped(x)
    if source is None:
        yield lambda rows: np.ascontiguousarray(x[rows])
        return
    first, size = source.offset + x.ctypes.data - source.ctypes.data, x[0].nbytes
    with open(source.filename, "rb") as file:

        def read(rows: slice | np.ndarray) -> np.ndarray:
            if isinstance(rows, slice):  # side by side in the file: read at once
                start, stop, _ = rows.indices(len(x))
                found = np.empty((stop - start, *x.shape[1:]), x.dtype)
                pieces = [(start, found)] if len(found) else []
            else:
                found = np.empty((len(rows), *x.shape[1:]), x.dtype)
                pieces = list(zip(rows.tolist(), found, strict=True))
            for row, place in pieces:
                if os.preadv(file.fileno(), [place.data], first + row * size) != place.nbytes:
                    raise InputError(f"{source.filename}: it has become shorter; leave it as it is during a run")
            return found

        source._mmap.madvise(mmap.MADV_DONTNEED)
        yield read


def _mapped(x: Any) -> Any:
    """The mapped file whose rows an array consists of, if it is read only and there is a way to give memory back."""
    source = x if x.flags.c_contiguous and len(x) else None
    while source is not None and not isinstance(source, np.memmap):
        source = getattr(source, "base", None)
    able = hasattr(os, "preadv") and hasattr(mmap, "MADV_DONTNEED")
    return source if source is not None and source.mode == "r" and source.filename and able else None


def release_memory() -> None:
    """Give back to the system what loading the data has left in the allocators: 80 MB after CIFAR-10."""
    pa.default_memory_pool().release_unused()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc's
        trim(0)
