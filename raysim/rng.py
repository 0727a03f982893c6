"""Random streams: every draw depends on (seed, purpose, round, client) and on nothing else."""

import hashlib

import numpy as np


def stream(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """An independent NumPy generator for one purpose of one client in one round.

    It draws on the host, so that draws are the same on every device, and no purpose shifts the draws of another.

    >>> a, b = stream(7, "batches", 3, 42), stream(7, "batches", 3, 42)
    >>> bool((a.permutation(5) == b.permutation(5)).all())
    True
    """
    name = f"{seed}/{purpose}/{round}/{client}".encode()
    key = np.frombuffer(hashlib.blake2b(name, digest_size=16).digest(), dtype="<u8")
    return np.random.Generator(np.random.Philox(key=key))
