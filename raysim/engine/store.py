"""What is put into the object store, and how it is read: zero-copy where Ray holds it, as it is in one process.

Arrays read from the store are shared by every process of the node, so nobody writes into them: they become tensors
only through `to_device` of engine/client.py, which copies. The driver uses this module and has no torch.
"""

import ctypes
import hashlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import ray

from raysim.config import RunConfig
from raysim.data.dataset import Dataset, Split
from raysim.data.partition import Partition, deal_test

CHUNK_BYTES = 32 * 2**20


def release_memory() -> None:
    """Give back to the system what loading the data has left in the allocators: 80 MB after CIFAR-10."""
    pa.default_memory_pool().release_unused()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc's
        trim(0)


def fetch(reference):
    """The object behind a reference; anything else is returned as it is."""
    return ray.get(reference) if isinstance(reference, ray.ObjectRef) else reference


@dataclass(frozen=True)
class Chunks:
    """Samples in a few large objects. Item i of the whole (a client, a batch) lies in one of them."""

    objects: list  # references to (x uint8, y int64)
    chunk: np.ndarray  # item -> object
    start: np.ndarray  # item -> first row in it
    stop: np.ndarray

    def read(self, item: int) -> tuple[np.ndarray, np.ndarray]:
        """The item's samples, read-only and without a copy."""
        x, y = fetch(self.objects[self.chunk[item]])
        rows = slice(self.start[item], self.stop[item])
        return x[rows], y[rows]


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


@dataclass(frozen=True)
class Federation:
    """What every actor is given once: the configuration and where the data lies."""

    config: RunConfig
    shape: tuple[int, int, int]
    classes: int
    mean: tuple[float, ...]  # per channel, of pixels in 0..255
    std: tuple[float, ...]
    sizes: np.ndarray  # samples per client
    clients: Chunks  # by client
    test: Chunks  # by evaluation batch, or by client

    def digest(self) -> str:
        """Tells this data and its split apart from others: shape, sizes and normalisation."""
        facts = repr((self.shape, self.classes, self.mean, self.std)).encode()
        return hashlib.sha256(facts + self.sizes.tobytes()).hexdigest()


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
