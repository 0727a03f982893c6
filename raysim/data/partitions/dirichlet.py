"""The Dirichlet partition."""

import heapq
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from raysim.data.partitions.base import Partitioner
from raysim.errors import InputError
from raysim.settings import setting


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Shares of every class drawn from a Dirichlet distribution: the smaller beta, the fewer clients hold a class."""

    example: ClassVar[str] = "0.1"

    beta: float = setting(0.5, "concentration of the dirichlet partition; smaller is more heterogeneous", above=0)

    def owners(
        self, members: list[np.ndarray], clients: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        if not (math.isfinite(self.beta) and self.beta > 0):
            raise InputError(f"partition: beta {self.beta}; give a finite number above 0")
        owner = np.empty(sum(map(len, members)), dtype=np.int64)
        for indices in members:
            # The random phase rounds each share up or down without bias. Plain rounding would favour the same clients
            # in every class if shares are similar and below one sample.
            ends = np.floor(np.cumsum(_shares(clients, self.beta, rng)) * len(indices) + rng.random()).astype(np.int64)
            ends = np.minimum(ends, len(indices))
            ends[-1] = len(indices)
            owner[indices] = np.repeat(np.arange(clients), np.diff(ends, prepend=0))
        given = _fill_empty(owner, clients, rng)
        if not given:
            return owner, ()
        note = f"partition: {given} of {clients} clients drew no sample; each was given one of the largest client"
        return owner, (note,)

    def words(self) -> str:
        return f"Dirichlet {self.beta:g}"


def _shares(clients: int, beta: float, rng: np.random.Generator) -> np.ndarray:
    """One draw from Dirichlet(β, …, β).

    Gamma(β) draws underflow to 0 for small β, and if all of them do, their shares are 0/0 (NumPy's own dirichlet has
    the same problem). So their logarithms are drawn: Gamma(β) = Gamma(β + 1) · U^(1/β).
    """
    beta = max(beta, 1e-300)  # below this, log(U)/β itself overflows
    logs = np.log(rng.standard_gamma(beta + 1, clients)) + np.log1p(-rng.random(clients)) / beta
    shares = np.exp(logs - logs.max())
    return shares / shares.sum()


def _fill_empty(owner: np.ndarray, clients: int, rng: np.random.Generator) -> int:
    """Give every client without a sample a random one of the client that is largest at that moment.

    Changes `owner`; returns the number of clients that had none.
    """
    sizes = np.bincount(owner, minlength=clients)
    empty = np.flatnonzero(sizes == 0)
    if not len(empty):
        return 0
    shuffled = rng.permutation(len(owner))
    stock = shuffled[np.argsort(owner[shuffled], kind="stable")]  # client after client, in random order within each
    last = np.cumsum(sizes) - 1
    largest = [(-size, client) for client, size in enumerate(sizes.tolist()) if size > 1]
    heapq.heapify(largest)
    for client in empty.tolist():
        size, donor = largest[0]
        owner[stock[last[donor]]] = client
        last[donor] -= 1
        heapq.heapreplace(largest, (size + 1, donor))
    return len(empty)
