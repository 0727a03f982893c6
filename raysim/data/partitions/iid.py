"""The iid partition."""

from dataclasses import dataclass

import numpy as np

from raysim.data.partitions.base import Partitioner


@dataclass(frozen=True)
class Iid(Partitioner):
    """Random samples, the same number for every client."""

    def owners(
        self, members: list[np.ndarray], clients: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        samples = sum(map(len, members))
        owner = np.empty(samples, dtype=np.int64)
        owner[rng.permutation(samples)] = np.arange(samples) * clients // samples
        return owner, ()
