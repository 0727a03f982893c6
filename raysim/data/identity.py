"""Identity of a dataset: a hash of what a run reads of it, so that nobody goes on with other data unawares."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from raysim.data.dataset import Dataset, Split
from raysim.data.federated_writer import row_reader
from raysim.data.images import THREADS

BLOCK_BYTES = 4 * 2**20  # hashed at once by a thread: few enough that mapped files stay out of memory


def identity(dataset: Dataset) -> str:
    """Return a hash of the pixels and labels of both splits, and of whose each image is, as they were loaded.

    Blocks are hashed by threads, so the hash is one of their hashes.
    """
    sha = hashlib.sha256()
    with ThreadPoolExecutor(THREADS) as pool:
        for split in (dataset.train, dataset.test):
            _add_images(sha, split, pool)
            _add(sha, split.y)
    if dataset.clients is not None:
        _add(sha, dataset.clients)
    return sha.hexdigest()


def _add_images(sha: hashlib._Hash, split: Split, pool: ThreadPoolExecutor) -> None:
    x = split.x
    sha.update(f"{x.dtype}|{x.shape}|".encode())
    rows = max(1, BLOCK_BYTES // x[0].nbytes)
    with row_reader(x) as images:

        def hashed(start: int) -> bytes:
            return hashlib.sha256(images(slice(start, start + rows)).data).digest()

        for block in pool.map(hashed, range(0, len(x), rows)):
            sha.update(block)


def _add(sha: hashlib._Hash, column: np.ndarray) -> None:
    sha.update(f"{column.dtype}|{column.shape}|".encode())
    sha.update(repr(column.tolist()).encode() if column.dtype == object else np.ascontiguousarray(column).data)
