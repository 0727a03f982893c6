"""Shares that follow the distribution, and nobody empty."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.data.partitions.dirichlet import Dirichlet
from tests.data.dealing import partition

from .common import balanced, check, quick, seeds


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


def test_names():
    assert (Dirichlet(1.0).label(), Dirichlet(0.05).label()) == ("dirichlet 1", "dirichlet 0.05")
    assert Dirichlet(0.1).words() == "Dirichlet 0.1"
