"""What holds for every partition, and the labels that tests deal."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from raysim.data.partitions import Partition

quick = settings(deadline=None, max_examples=150)
seeds = st.integers(0, 2**31)


def balanced(classes, each):
    """Labels 0, 1, …, classes - 1, 0, 1, …"""
    return np.tile(np.arange(classes), each)


def check(parts: Partition, labels, clients, unused_labels=()):
    """What holds for every partition: each kept sample exactly once, nobody empty, ascending within a client."""
    kept = np.flatnonzero(~np.isin(labels, unused_labels))
    assert parts.order.dtype == parts.offsets.dtype == np.int64
    assert parts.clients == clients == len(parts.sizes)
    assert np.array_equal(np.sort(parts.order), kept)
    assert parts.sizes.min() >= 1
    assert parts.sizes.sum() == len(parts.order)
    descents = np.flatnonzero(np.diff(parts.order) < 0) + 1
    assert np.isin(descents, parts.offsets).all()
