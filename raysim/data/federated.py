"""What actors read of a federation: zero-copy where Ray holds it, as it is in one process.

Arrays read from the store are shared by every process of the node, so nobody writes into them: they become tensors
only through `to_device` of tensors.py, which copies. Every actor imports this module: it stays light.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import ray

from raysim.config import RunConfig
from raysim.tensors import to_device


def fetch(reference):
    """The object behind a reference; anything else is returned as it is."""
    return ray.get(reference) if isinstance(reference, ray.ObjectRef) else reference


def assigned_gpus() -> list[int]:
    """The GPUs Ray gave this actor."""
    return [int(i) for i in ray.get_gpu_ids()] if ray.is_initialized() else []


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

    def typical(self, clients: list[int]) -> int:
        """The one whose size is nearest to their mean."""
        sizes = self.sizes[clients]
        return clients[int(np.abs(sizes - sizes.mean()).argmin())]

    def pixel_range(self, device) -> tuple:
        """The normalised values of black and white, per channel."""
        mean, std = (np.array(v, dtype=np.float32).reshape(1, -1, 1, 1) for v in (self.mean, self.std))
        return to_device((-mean / std, (255 - mean) / std), device)

    def digest(self) -> str:
        """Tells this data and its split apart from others: shape, sizes and normalisation."""
        facts = repr((self.shape, self.classes, self.mean, self.std)).encode()
        return hashlib.sha256(facts + self.sizes.tobytes()).hexdigest()
