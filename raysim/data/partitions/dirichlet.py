"""The Dirichlet partition."""

import heapq
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from raysim.data.partitions.base import Partitioner
from raysim.errors import InputError
from raysim.settings import setting

DRAWS = 10_000  # of a whole partition, until every client has its fewest samples


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Shares of every class drawn from a Dirichlet distribution: the smaller beta, the fewer clients hold a class."""

    example: ClassVar[str] = "0.1"

    beta: float = setting(0.5, "concentration of the dirichlet partition; smaller is more heterogeneous", above=0)
    min_samples: int = setting(
        0, "fewest samples of a client in the dirichlet partition, which is drawn as in the papers' code; 0: any draw",
        minimum=0,
    )  # fmt: skip
    quota: float = setting(
        1.0, "with --min-samples: a client with this many times its even share gets none of the classes that follow",
        minimum=1,
    )  # fmt: skip

    def owners(
        self, members: list[np.ndarray], clients: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        if not (math.isfinite(self.beta) and self.beta > 0):
            raise InputError(f"partition: beta {self.beta}; give a finite number above 0")
        if self.min_samples:
            return self._with_quota(members, clients, rng), ()
        owner = np.empty(sum(map(len, members)), dtype=np.int64)
        for indices in members:
            # The random phase rounds each share up or down without bias. Plain rounding would favour the same clients
            # in every class if shares are similar and below one sample.
            shares = _shares(_log_gammas(clients, self.beta, rng))
            ends = np.floor(np.cumsum(shares) * len(indices) + rng.random()).astype(np.int64)
            ends = np.minimum(ends, len(indices))
            ends[-1] = len(indices)
            owner[indices] = np.repeat(np.arange(clients), np.diff(ends, prepend=0))
        given = _fill_empty(owner, clients, rng)
        if not given:
            return owner, ()
        note = f"partition: {given} of {clients} clients drew no sample; each was given one of the largest client"
        return owner, (note,)

    def words(self) -> str:
        fewest = f", at least {self.min_samples} samples" if self.min_samples else ""
        return f"Dirichlet {self.beta:g}{fewest}"

    def _with_quota(self, members: list[np.ndarray], clients: int, rng: np.random.Generator) -> np.ndarray:
        """Draw by the rule of NIID-Bench, FedPA's and FedDPMS's code, which repeats the draw until everyone has enough.

        A client that has its even share of all samples (or `quota` times as many) gets none of the classes that follow.
        """
        samples = sum(map(len, members))
        if self.min_samples * clients > samples:
            raise InputError(
                f"partition: {clients} clients with at least {self.min_samples} samples each, but there are {samples}; "
                "lower --min-samples or --clients"
            )
        for _ in range(DRAWS):
            ends = self._ends(list(map(len, members)), clients, rng)
            if np.diff(ends, axis=1, prepend=0).sum(axis=0).min() >= self.min_samples:
                owner = np.empty(samples, dtype=np.int64)
                for indices, last in zip(members, ends, strict=True):
                    owner[indices] = np.repeat(np.arange(clients), np.diff(last, prepend=0))
                return owner
        raise InputError(
            f"partition: in {DRAWS} draws with --beta {self.beta:g} some of {clients} clients always had fewer than "
            f"{self.min_samples} samples; lower --min-samples or --clients, or raise --beta"
        )

    def _ends(self, sizes: list[int], clients: int, rng: np.random.Generator) -> np.ndarray:
        """Draw where each client's samples end in every class of these sizes, [classes, clients]."""
        held, ends = np.zeros(clients, dtype=np.int64), []
        for size in sizes:
            wanting = held < self.quota * sum(sizes) / clients
            wanting |= not wanting.any()  # all have their even share, so that this class and the rest are empty
            shares = _shares(np.where(wanting, _log_gammas(clients, self.beta, rng), -np.inf))
            last = np.floor(np.cumsum(shares) * size).astype(np.int64)
            last[np.flatnonzero(wanting)[-1] :] = size  # what rounding leaves is for somebody who still wants some
            held += np.diff(last, prepend=0)
            ends.append(last)
        return np.array(ends)


def _log_gammas(clients: int, beta: float, rng: np.random.Generator) -> np.ndarray:
    """Draw the logarithm of a Gamma(β) number for each client.

    The draws themselves underflow to 0 for small β, and if all of them do, their shares are 0/0 (NumPy's own dirichlet
    has the same problem). So their logarithms are drawn: Gamma(β) = Gamma(β + 1) · U^(1/β).
    """
    beta = max(beta, 1e-300)  # below this, log(U)/β itself overflows
    return np.log(rng.standard_gamma(beta + 1, clients)) + np.log1p(-rng.random(clients)) / beta


def _shares(logs: np.ndarray) -> np.ndarray:
    """Return shares that add up to 1, from the logarithms of Gamma draws: one draw from a Dirichlet distribution."""
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
