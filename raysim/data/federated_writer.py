"""Writes a federation's data to the object store. Only the driver does: it has no torch, and actors none of this."""

import ctypes

import numpy as np
import pyarrow as pa

from raysim.config import RunConfig
from raysim.data.dataset import Dataset, Split
from raysim.data.federated import Chunks, Federation
from raysim.data.partition import Partition, deal_test

CHUNK_BYTES = 32 * 2**20


def release_memory() -> None:
    """Give back to the system what loading the data has left in the allocators: 80 MB after CIFAR-10."""
    pa.default_memory_pool().release_unused()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc's
        trim(0)


def chunked(split: Split, order: np.ndarray | None, offsets: np.ndarray, put) -> Chunks:
    """Store a split so that item i is rows offsets[i]:offsets[i+1] of it (taken in `order`)."""
    row_bytes = max(1, split.x[0].nbytes)
    chunk = np.empty(len(offsets) - 1, dtype=np.int32)
    start, stop = np.empty_like(offsets[1:]), np.empty_like(offsets[1:])
    objects, first = [], 0
    while first < len(chunk):
        last = int(np.searchsorted(offsets, offsets[first] + CHUNK_BYTES // row_bytes, side="right")) - 1
        last = max(last, first + 1)
        rows = slice(offsets[first], offsets[last])
        rows = rows if order is None else order[rows]
        chunk[first:last] = len(objects)
        start[first:last] = offsets[first:last] - offsets[first]
        stop[first:last] = offsets[first + 1 : last + 1] - offsets[first]
        objects.append(put((np.ascontiguousarray(split.x[rows]), np.ascontiguousarray(split.y[rows]))))
        first = last
    return Chunks(objects, chunk, start, stop)


def normalisation(split: Split, how: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel; from counts of pixel values, so that they are exact."""
    if how == "half":
        return (127.5,) * split.x.shape[1], (127.5,) * split.x.shape[1]
    means, stds = [], []
    values = np.arange(256, dtype=np.float64)
    for channel in range(split.x.shape[1]):
        counts = sum(
            np.bincount(split.x[i : i + 4096, channel].ravel(), minlength=256) for i in range(0, len(split.x), 4096)
        )
        mean = float(counts @ values / counts.sum())
        means.append(mean)
        # A constant channel would divide by zero.
        stds.append(max(float(counts @ (values - mean) ** 2 / counts.sum()) ** 0.5, 1.0))
    return tuple(means), tuple(stds)


def federation(config: RunConfig, dataset: Dataset, partition: Partition, put) -> Federation:
    """Write the dataset to the store, clients' samples side by side, test batches side by side."""
    order, offsets = None, np.append(np.arange(0, len(dataset.test.y), config.eval_batch), len(dataset.test.y))
    if config.evaluation == "clients":
        order, offsets = deal_test(dataset.test.y, partition.counts(dataset.train.y, dataset.classes) > 0)
    mean, std = normalisation(dataset.train, config.normalise)
    return Federation(
        config=config, shape=dataset.shape, classes=dataset.classes, mean=mean, std=std, sizes=partition.sizes,
        clients=chunked(dataset.train, partition.order, partition.offsets, put),
        test=chunked(dataset.test, order, offsets, put),
    )  # fmt: skip
