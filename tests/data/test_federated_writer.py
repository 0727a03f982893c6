"""The record of who owns which sample, and the test split dealt accordingly."""

import numpy as np
import pytest

from raysim.data.federated_writer import deal_test
from tests.data.dealing import partition


def test_indices_and_counts():
    labels = np.array([0, 1, 1, 0, 2])
    parts = partition(labels, 3, kind="iid", clients=2, seed=0)
    assert np.array_equal(np.concatenate([parts.indices(0), parts.indices(1)]), parts.order)
    expected = [np.bincount(labels[parts.indices(k)], minlength=3) for k in range(2)]
    assert np.array_equal(parts.counts(labels, 3), expected)
    for outside in (-1, 2):
        with pytest.raises(IndexError, match="of 2"):
            parts.indices(outside)


def test_the_test_split_follows_the_classes_held():
    labels = np.array([0, 1, 2] * 40)  # 40 of each
    held = np.array([[True, False, True], [True, True, False], [False, False, False], [True, False, False]])
    order, offsets = deal_test(labels, held)
    shares = np.split(order, offsets[1:-1])
    counts = [np.bincount(labels[s], minlength=3).tolist() for s in shares]
    assert counts == [[10, 0, 10], [10, 10, 0], [0, 0, 0], [10, 0, 0]]
    assert len(set(order)) == len(order)  # no image twice
    few, _ = deal_test(np.array([0, 0]), np.ones((5, 1), bool))
    assert few.tolist() == [0, 1, 0, 1, 0]  # fewer images than clients
