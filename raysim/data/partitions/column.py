"""The partition by a column of the data."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from raysim.data.partitions.base import Partition, Partitioner, partition_of
from raysim.errors import InputError
from raysim.rng import stream
from raysim.settings import setting


@dataclass(frozen=True)
class Column(Partitioner):
    """The clients that the data itself names: a column says whose each sample is, as in LEAF."""

    example: ClassVar[str] = "writer"

    client_column: str | None = setting(
        None, "column of the data with the client of each sample, for the column partition"
    )

    @property
    def needs_column(self) -> str | None:
        return self.client_column

    def check(self, chosen: bool) -> None:
        if chosen != (self.client_column is not None):
            raise InputError("--partition column goes with --client-column NAME; give both or neither")

    def owners(
        self, members: list[np.ndarray], clients: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        raise InputError("partition: the column partition needs the data's clients; this data has none")

    def deal(
        self, labels: ArrayLike, classes: int, clients: int, seed: int, groups: np.ndarray | None = None
    ) -> Partition:
        """Give each value of the column, in order, to a client; of more values than clients, some are drawn."""
        if groups is None:
            return super().deal(labels, classes, clients, seed)
        values, owner = np.unique(groups, return_inverse=True)
        if clients > len(values):
            raise InputError(
                f"partition: {clients} clients, but {len(values)} different values in column {self.client_column}; "
                f"give --clients {len(values)} or fewer"
            )
        if clients == len(values):
            return partition_of(owner, clients, ())
        drawn = np.sort(stream(seed, "partition").permutation(len(values))[:clients])
        number = np.full(len(values), -1)
        number[drawn] = np.arange(clients)
        note = f"partition: {clients} of {len(values)} values of column {self.client_column} were drawn as clients"
        return partition_of(number[owner], clients, (note,))

    def words(self) -> str:
        return f"by the column {self.client_column}"
