"""Who owns which sample: the training split dealt by a partition, and the test split dealt accordingly."""

import numpy as np
from numpy.typing import ArrayLike

from raysim.data import partitions
from raysim.data.partitions import Partition

__all__ = ["Partition", "deal_test", "partition"]


def partition(labels: ArrayLike, classes: int, *, kind: str, clients: int, seed: int, **settings: object) -> Partition:
    """Give the samples with these labels (0 … classes - 1) to the clients, by a partition's name and its settings.

    >>> parts = partition([0, 0, 1, 1], 2, kind="classes", clients=2, seed=0, classes_per_client=1)
    >>> parts.sizes.tolist()
    [2, 2]
    """
    return partitions.partition_class(kind)(**settings).deal(labels, classes, clients, seed)


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
