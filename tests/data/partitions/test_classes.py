"""Exactly as many classes per client as asked for, in even shards."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.data.partitions.classes import Classes
from tests.data.dealing import partition

from .common import balanced, check, quick, seeds


@quick
@given(data=st.data(), classes=st.integers(1, 30), seed=seeds)
def test_classes_gives_exactly_c_classes_in_even_shards(data, classes, seed):
    clients = data.draw(st.integers(1, 10_000) | st.integers(1, 40))
    per_client = data.draw(st.integers(1, min(classes, max(1, 20_000 // clients))))
    most = -(-clients * per_client // classes)
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(classes), most + rng.integers(5, size=classes)))
    parts = partition(labels, classes, kind="classes", clients=clients, seed=seed, classes_per_client=per_client)
    counts = parts.counts(labels, classes)
    left_out = np.flatnonzero(counts.sum(axis=0) == 0)
    check(parts, labels, clients, left_out)
    assert len(left_out) == max(0, classes - clients * per_client)
    assert bool(parts.notes) == bool(len(left_out))
    assert ((counts > 0).sum(axis=1) == per_client).all()
    assert np.ptp((counts > 0).sum(axis=0)) <= 1
    for column in counts.T:
        if column.any():
            assert np.ptp(column[column > 0]) <= 1


def test_classes_are_dealt_at_random():
    labels = balanced(10, 400)
    together = np.zeros((10, 10))
    for seed in range(20):
        parts = partition(labels, 10, kind="classes", clients=100, seed=seed, classes_per_client=2)
        held = (parts.counts(labels, 10) > 0).astype(int)
        together += held.T @ held
    pairs = together[np.triu_indices(10, 1)]  # 2,000 clients over 45 pairs
    assert pairs.mean() == pytest.approx(2000 / 45)
    assert pairs.min() > 15
    assert pairs.max() < 85


def test_which_classes_are_left_out_is_seeded_and_said():
    labels = balanced(10, 5)
    out = set()
    for seed in range(20):
        parts = partition(labels, 10, kind="classes", clients=2, seed=seed, classes_per_client=2)
        missing = np.flatnonzero(parts.counts(labels, 10).sum(axis=0) == 0)
        out.update(missing.tolist())
        assert parts.notes == (
            f"partition: 6 of 10 classes are left out ({', '.join(map(str, missing))}), 30 samples unused",
        )
    assert out == set(range(10))


def test_names():
    assert Classes(10).label() == "classes 10"
    assert (Classes(1).words(), Classes(2).words()) == ("1 class per client", "2 classes per client")
