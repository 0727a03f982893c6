"""Partitions that the user wrote: a `Partitioner`, its class, or a function (labels, clients, rng) -> owner of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from raysim.data.partitions.base import Partitioner
from raysim.definitions import described, find, source_of
from raysim.errors import InputError


@dataclass(frozen=True)
class OwnPartition(Partitioner):
    """A partition that calls the user's code and checks its answer."""

    given: str  # MODULE:NAME, or the object itself under that name

    def definition(self) -> Any:
        found = find(self.given, "partition")
        found = found() if isinstance(found, type) and issubclass(found, Partitioner) else found
        if not (isinstance(found, Partitioner) or callable(found)):
            kind = type(found).__name__
            raise InputError(
                f"--partition {self.given}: {kind} is no partition; give a raysim.Partitioner or a function of "
                "(labels, clients, rng)"
            )
        return found

    def digest(self) -> str:
        """Return a digest of the code's source, and of its settings."""
        return source_of(self.given, "partition")

    def owners(
        self, members: list[np.ndarray], clients: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        definition, samples = self.definition(), sum(map(len, members))
        try:
            if isinstance(definition, Partitioner):
                owner, notes = definition.owners(members, clients, rng)
            else:
                labels = np.empty(samples, np.int64)
                for label, rows in enumerate(members):
                    labels[rows] = label
                owner, notes = definition(labels, clients, rng), ()
            owner = np.asarray(owner)
        except InputError:
            raise
        except Exception as error:
            raise InputError(f"--partition {self.given}: {described(error)}") from error
        if owner.shape != (samples,) or not np.issubdtype(owner.dtype, np.integer):
            raise InputError(
                f"--partition {self.given} returns {owner.dtype} of shape {owner.shape}; needed: a client for each of "
                f"{samples} samples, or -1 for none"
            )
        if owner.min() < -1 or owner.max() >= clients:
            raise InputError(
                f"--partition {self.given}: owners from {owner.min()} to {owner.max()} of {clients} clients"
            )
        if len(without := np.setdiff1d(np.arange(clients), owner)):
            raise InputError(f"--partition {self.given}: client {without[0]} has no sample; give every client one")
        return owner.astype(np.int64), tuple(notes)

    def label(self) -> str:
        return str(self.given)
