"""Partitions: nobody empty, nothing twice, exactly what was asked for, and it always ends."""

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.data.partition import Partition, deal_test, partition
from raysim.data.partitions.table import TABLES, read_table
from raysim.errors import InputError

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


@quick
@given(clients=st.integers(1, 10_000), extra=st.integers(0, 5000), seed=seeds)
def test_iid_is_even(clients, extra, seed):
    labels = np.resize(np.arange(10), clients + extra)
    parts = partition(labels, 10, kind="iid", clients=clients, seed=seed)
    check(parts, labels, clients)
    assert np.ptp(parts.sizes) <= 1
    assert parts.notes == ()


@quick
@given(
    clients=st.integers(1, 10_000),
    extra=st.integers(0, 5000),
    classes=st.integers(1, 30),
    beta=st.floats(0.001, 1000) | st.sampled_from([1e-320, 1e-300, 1e-9, 0.001, 1e9, 1e308]),
    seed=seeds,
)
def test_dirichlet_uses_everything_and_leaves_nobody_empty(clients, extra, classes, beta, seed):
    labels = np.random.default_rng(seed).integers(classes, size=clients + extra)
    parts = partition(labels, classes, kind="dirichlet", clients=clients, seed=seed, beta=beta)
    check(parts, labels, clients)


def test_dirichlet_gives_to_the_empty_and_says_how_many():
    labels = balanced(3, 100)
    parts = partition(labels, 3, kind="dirichlet", clients=50, seed=0, beta=1e-6)
    check(parts, labels, 50)
    (note,) = parts.notes
    owners = 50 - int(note.split()[1])  # the clients that had drawn something
    assert 1 <= owners <= 3
    assert (parts.sizes == 1).sum() == 50 - owners
    assert np.ptp(np.sort(parts.sizes)[-owners:]) <= 100  # the largest gave, so they come closer to each other
    assert "50 clients" in note


def test_the_given_sample_is_a_random_one():
    labels = balanced(2, 500)
    gifts = np.zeros(2, dtype=int)
    for seed in range(40):
        parts = partition(labels, 2, kind="dirichlet", clients=20, seed=seed, beta=1e-6)
        counts = parts.counts(labels, 2)
        gifts += counts[parts.sizes == 1].sum(axis=0)
    assert gifts.min() > 0.3 * gifts.sum()


def test_dirichlet_shares_have_the_right_mean_and_variance():
    clients, beta, labels = 5, 0.5, balanced(200, 1000)
    parts = partition(labels, 200, kind="dirichlet", clients=clients, seed=3, beta=beta)
    shares = parts.counts(labels, 200) / 1000  # 200 independent draws of a Dirichlet over 5
    assert shares.mean(axis=1) == pytest.approx(1 / clients, abs=0.06)
    assert shares.var() == pytest.approx((1 / clients) * (1 - 1 / clients) / (clients * beta + 1), rel=0.15)


def test_smaller_beta_is_more_heterogeneous():
    labels = balanced(10, 1000)

    def classes_held(beta):
        parts = partition(labels, 10, kind="dirichlet", clients=20, seed=1, beta=beta)
        shares = parts.counts(labels, 10) / parts.sizes[:, None]
        return (1 / (shares**2).sum(axis=1)).mean()  # the effective number of classes of a client

    held = [classes_held(beta) for beta in (0.01, 0.1, 1, 10, 1000)]
    assert held == sorted(held)
    assert held[0] < 2.5
    assert held[-1] > 9.5


def test_large_beta_does_not_favour_the_same_clients_in_every_class():
    labels = balanced(100, 20)  # a fifth of a sample per client and class
    parts = partition(labels, 100, kind="dirichlet", clients=100, seed=0, beta=1e9)
    assert 8 < parts.sizes.min() <= parts.sizes.max() < 36


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


@quick
@given(clients=st.integers(1, 40), classes=st.integers(1, 8), seed=seeds)
def test_table_is_followed_exactly(clients, classes, seed):
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 6, size=(clients, classes))
    table[:, 0] += 1
    spare = rng.integers(0, 4, size=classes)
    labels = rng.permutation(np.repeat(np.arange(classes), table.sum(axis=0) + spare))
    parts = partition(labels, classes, kind="table", clients=clients, seed=seed, table=table)
    assert np.array_equal(parts.counts(labels, classes), table)
    assert len(np.unique(parts.order)) == len(parts.order)
    assert bool(parts.notes) == bool(spare.sum())


def test_the_covid19_table_by_name():
    labels = np.repeat(np.arange(3), [8000, 3000, 1000])
    parts = partition(labels, 3, kind="table", clients=6, seed=0, table="covid19")
    assert np.array_equal(parts.counts(labels, 3), read_table("covid19"))
    assert parts.sizes.tolist() == [2750, 1000, 2250] * 2
    assert parts.notes == ()


KIND_ARGUMENTS = [
    {"kind": "iid"},
    {"kind": "dirichlet", "beta": 0.1},
    {"kind": "classes", "classes_per_client": 3},
    {"kind": "table", "table": np.full((20, 10), 2)},
]


@pytest.mark.parametrize("arguments", KIND_ARGUMENTS, ids=lambda a: a["kind"])
def test_same_seed_same_partition(arguments):
    labels = balanced(10, 50)
    first, again, other = (partition(labels, 10, clients=20, seed=seed, **arguments) for seed in (5, 5, 6))
    assert np.array_equal(first.order, again.order)
    assert np.array_equal(first.offsets, again.offsets)
    assert not np.array_equal(first.order, other.order)


@pytest.mark.parametrize(
    ("clients", "arguments"),
    [
        (10_000, {"kind": "dirichlet", "beta": 0.001}),
        (10_000, {"kind": "classes", "classes_per_client": 10}),
        (1000, {"kind": "classes", "classes_per_client": 99}),
        (100_000, {"kind": "iid"}),
    ],
)
def test_large_partitions_are_fast(clients, arguments):
    labels = balanced(100, 2000)
    start = time.process_time()
    parts = partition(labels, 100, clients=clients, seed=0, **arguments)
    assert time.process_time() - start < 2
    check(parts, labels, clients)


def test_indices_and_counts():
    labels = np.array([0, 1, 1, 0, 2])
    parts = partition(labels, 3, kind="iid", clients=2, seed=0)
    assert np.array_equal(np.concatenate([parts.indices(0), parts.indices(1)]), parts.order)
    expected = [np.bincount(labels[parts.indices(k)], minlength=3) for k in range(2)]
    assert np.array_equal(parts.counts(labels, 3), expected)
    for outside in (-1, 2):
        with pytest.raises(IndexError, match="of 2"):
            parts.indices(outside)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "random"}, "unknown kind 'random'; choose one of iid"),
        ({"clients": 0}, "at least 1"),
        ({"clients": 101}, "101 clients but only 100 training samples"),
        ({"classes": 9}, "labels go from 0 to 9, but there are 9 classes"),
        ({"kind": "dirichlet", "beta": 0}, "beta 0; give a finite number above 0"),
        ({"kind": "dirichlet", "beta": -1.0}, "above 0"),
        ({"kind": "dirichlet", "beta": float("nan")}, "finite"),
        ({"kind": "dirichlet", "beta": float("inf")}, "finite"),
        ({"kind": "classes", "classes_per_client": 0}, "ask for 1 to 10"),
        ({"kind": "classes", "classes_per_client": 11}, "11 classes per client of 10 classes"),
        ({"kind": "classes", "clients": 60}, "class 0 has 10 samples for 12 clients; use fewer clients"),
        ({"kind": "table"}, "without a table"),
        ({"kind": "table", "table": "covid19"}, "6 rows for 5 clients"),
        ({"kind": "table", "table": np.ones((5, 3), int)}, "3 columns for 10 classes"),
        ({"kind": "table", "table": np.full((5, 10), 3)}, "class 0 has 10 samples, the table asks for 15"),
        ({"kind": "table", "table": np.full((5, 10), 2**62)}, "the table asks for"),
        ({"kind": "table", "table": np.zeros((5, 10), int)}, "client 0 has no sample"),
        ({"kind": "table", "table": np.full((5, 10), -1)}, "client 0, class 0 has -1"),
        ({"kind": "table", "table": np.ones((5, 10))}, "not a table of integers"),
        ({"kind": "table", "table": [[1, 2], [3]]}, "not a table of integers"),
    ],
)
def test_wrong_input_is_one_clear_line(changes, message):
    arguments = {"classes": 10, "kind": "iid", "clients": 5, "seed": 0} | changes
    with pytest.raises(InputError, match=message) as caught:
        partition(balanced(10, 10), **arguments)
    assert "\n" not in str(caught.value)


def test_read_table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("1, 2, 0\r\n\r\n0,0,7\n")
    assert read_table(path).tolist() == [[1, 2, 0], [0, 0, 7]]
    assert read_table(str(path)).dtype == np.int64
    assert read_table("covid19").tolist() == [list(row) for row in TABLES["covid19"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"a,b\n1,2\n", "line 1: not integers"),
        (b"1,2\n1,2.5\n", "line 2: not integers"),
        (b"1,99999999999999999999\n", "line 1: not integers"),
        (b"1,2\n1\n", "line 2: 1 columns, before it 2"),
        (b"1,-2\n", "client 0, class 1 has -2"),
        (b"1,2\n0,0\n", "client 1 has no sample"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b'"1\n' + b"1" * 200_000, "cannot be read"),
    ],
)
def test_a_wrong_table_file_is_one_clear_line(tmp_path, content, message):
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_table(path)
    assert "table.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["missing.csv", ".", "x" * 5000])
def test_a_missing_table_file(tmp_path, name):
    with pytest.raises(InputError, match=r"no such file|cannot be read"):
        read_table(tmp_path / name)


def test_no_torch_is_imported():
    code = "import sys, raysim.data.partition; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def deal_test_of_the_test_split_follow_the_classes_held():
    labels = np.array([0, 1, 2] * 40)  # 40 of each
    held = np.array([[True, False, True], [True, True, False], [False, False, False], [True, False, False]])
    order, offsets = deal_test(labels, held)
    shares = np.split(order, offsets[1:-1])
    counts = [np.bincount(labels[s], minlength=3).tolist() for s in shares]
    assert counts == [[10, 0, 10], [10, 10, 0], [0, 0, 0], [10, 0, 0]]
    assert len(set(order)) == len(order)  # no image twice
    few, _ = deal_test(np.array([0, 0]), np.ones((5, 1), bool))
    assert few.tolist() == [0, 1, 0, 1, 0]  # fewer images than clients
