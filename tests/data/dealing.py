"""Partitions by name, for tests."""

from raysim.data import partitions
from raysim.data.partitions import Partition


def partition(labels, classes: int, *, kind: str, clients: int, seed: int, **settings) -> Partition:
    """Give the samples with these labels to the clients, by a partition's name and its settings."""
    return partitions.partition_class(kind)(**settings).deal(labels, classes, clients, seed)
