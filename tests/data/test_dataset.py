"""Keeping a part of a split, and holding one out."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from raysim.data.dataset import check_labels, hold_out, keep_stratified, wrong
from raysim.rng import stream

from .made import one_line_error

labels = st.lists(st.integers(0, 5), min_size=1, max_size=80).map(np.array)


@given(labels, st.data())
def test_a_kept_part_has_the_asked_size_and_the_same_shares(y, data):
    count = data.draw(st.integers(1, len(y)))
    rows = keep_stratified(y, count, stream(0, "test"))
    assert len(rows) == count
    assert (np.diff(rows) > 0).all()
    for c in np.unique(y):
        exact = (y == c).sum() * count / len(y)
        assert abs((y[rows] == c).sum() - exact) < 1
    assert np.array_equal(rows, keep_stratified(y, count, stream(0, "test")))


@given(labels)
def test_holding_out_divides_the_rows_and_leaves_every_class_in_training(y):
    train, test = hold_out(y, stream(0, "test"))
    assert sorted([*train, *test]) == list(range(len(y)))
    for c, n in zip(*np.unique(y, return_counts=True), strict=True):
        held = (y[test] == c).sum()
        assert held == (0 if n == 1 else max(1, n // 6))


def test_the_seed_decides():
    y = np.zeros(100, int)
    assert not np.array_equal(keep_stratified(y, 50, stream(0, "a")), keep_stratified(y, 50, stream(1, "a")))


def test_a_label_outside_names_its_row():
    check_labels(np.array([1, 3]), 3, "f", first=1)
    for label in (-1, 3):
        with one_line_error("f: row 1: ", f"label {label}", "0..2"):
            check_labels(np.array([0, label]), 3, "f")


def test_messages_stay_on_one_line():
    assert str(wrong("a\nb:\n  c")) == "a b: c"
