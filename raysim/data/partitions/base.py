"""The interface of partitions, and the record of who owns which sample.

A partition is one file in this folder with one `Partitioner`: a frozen dataclass whose settings are its fields and
whose method `owners` deals the samples. Its settings are flags of every run, without a prefix.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from raysim.errors import InputError
from raysim.rng import stream
from raysim.settings import as_dict, setting_fields


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of every client: client k owns `order[offsets[k]:offsets[k + 1]]`, in ascending order."""

    order: np.ndarray  # int64 indices into the training split, client after client
    offsets: np.ndarray  # int64 [clients + 1]
    notes: tuple[str, ...] = ()  # one line each, shown to the user

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> np.ndarray:
        """Return the number of samples of each client, int64 [clients]."""
        return np.diff(self.offsets)

    def indices(self, client: int) -> np.ndarray:
        """Return the samples of one client, as indices into the training split."""
        if not 0 <= client < self.clients:
            raise IndexError(f"client {client} of {self.clients}")
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def counts(self, labels: ArrayLike, classes: int) -> np.ndarray:
        """Return the number of samples by client and class, int64 [clients, classes]."""
        owner = np.repeat(np.arange(self.clients), self.sizes)
        cell = owner * classes + np.asarray(labels)[self.order]
        return np.bincount(cell, minlength=self.clients * classes).reshape(self.clients, classes)


@dataclass(frozen=True)
class Partitioner(ABC):
    """A way to deal the samples of the training split to the clients. Its name is that of its file."""

    example: ClassVar[str] = ""  # a value for the short form: '2' in `classes:2`; empty if it has no settings

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    @abstractmethod
    def owners(
        self, members: list[np.ndarray], clients: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return the client that owns each sample, int64 [samples], and notes for the user.

        `members` has the samples of every class as shuffled indices. Every client must own a sample; a sample that
        nobody owns has owner -1.
        """

    def training_counts(self) -> tuple[int, ...] | None:
        """Return the samples of each class that the partition takes, if it knows.

        A dataset without test split is tested on the rest.
        """
        return None

    def check(self, chosen: bool) -> None:  # noqa: B027 - most have nothing to check
        """Raise an InputError if its settings are wrong; `chosen` says whether the run uses this partition.

        It is called before any data is loaded, for every partition, since all their flags are always accepted.
        """

    def label(self) -> str:
        """Return the name and the first setting as in tables and keys of the papers' figures: `dirichlet 0.1`."""
        first = list(as_dict(self).values())[:1]
        values = (f"{value:g}" if isinstance(value, float) else str(value) for value in first)
        return " ".join([self.name, *values])

    def words(self) -> str:
        """Return the label in words, for reports."""
        return self.label()

    @classmethod
    def parse(cls, value: str) -> dict[str, object] | None:
        """Return the settings that the text behind the colon in `classes:2` means; None if it cannot be read."""
        first = list(setting_fields(cls))[:1]
        return None if bool(value) != bool(first) else dict.fromkeys(first, value)

    @property
    def needs_column(self) -> str | None:
        """Return the column of the data that says whose each sample is, if this partition asks for one."""
        return None

    def deal(
        self, labels: ArrayLike, classes: int, clients: int, seed: int, groups: np.ndarray | None = None
    ) -> Partition:
        """Give the samples with these labels (0 … classes - 1) to the clients, so that every client has one.

        `groups` has the values of the column that `needs_column` names.
        """
        labels = np.asarray(labels)
        if clients < 1:
            raise InputError(f"partition: {clients} clients; ask for at least 1")
        if clients > len(labels):
            raise InputError(f"partition: {clients} clients but only {len(labels)} training samples; use fewer clients")
        if labels.min() < 0 or labels.max() >= classes:
            raise InputError(
                f"partition: labels go from {labels.min()} to {labels.max()}, but there are {classes} classes; "
                f"number them 0 to {classes - 1}"
            )
        rng = stream(seed, "partition")
        owner, notes = self.owners(_shuffled_members(labels, classes, rng), clients, rng)
        return partition_of(owner, clients, notes)


def partition_of(owner: np.ndarray, clients: int, notes: tuple[str, ...]) -> Partition:
    """Return the partition that has these owners; -1 is nobody."""
    # A stable sort by owner leaves each client's samples in ascending order; those of nobody (-1) come first.
    sizes = np.bincount(owner + 1, minlength=clients + 1)
    order = np.argsort(owner, kind="stable")[sizes[0] :]
    offsets = np.concatenate([[0], np.cumsum(sizes[1:])])
    return Partition(order, offsets, notes)


def _shuffled_members(labels: np.ndarray, classes: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the samples of each class, shuffled."""
    shuffled = rng.permutation(len(labels))
    grouped = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return np.split(grouped, np.cumsum(np.bincount(labels, minlength=classes))[:-1])
