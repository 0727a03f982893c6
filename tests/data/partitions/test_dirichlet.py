"""Shares that follow the distribution, and nobody empty."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.data.partitions.dirichlet import Dirichlet
from raysim.errors import InputError
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


def papers_draw(sizes, clients, beta, fewest, rng):
    """NIID-Bench's rule as its authors loop it, on the same Gamma draws: samples [classes, clients]."""
    while True:
        held, counts = [0] * clients, []
        for size in sizes:
            logs = [math.log(g) for g in rng.standard_gamma(beta + 1, clients)]
            logs = [log + math.log1p(-u) / beta for log, u in zip(logs, rng.random(clients), strict=True)]
            still_open = [k for k in range(clients) if held[k] < sum(sizes) / clients]
            top = max(logs[k] for k in still_open)
            weights = [math.exp(logs[k] - top) if k in still_open else 0.0 for k in range(clients)]
            cuts = [int(sum(weights[: k + 1]) / sum(weights) * size + 1e-9) for k in range(clients)]
            cuts[still_open[-1] :] = [size] * (clients - still_open[-1])
            counts.append([end - start for start, end in zip([0, *cuts[:-1]], cuts, strict=True)])
            held = [before + new for before, new in zip(held, counts[-1], strict=True)]
        if min(held) >= fewest:
            return np.array(counts)


@pytest.mark.parametrize(("beta", "clients", "size"), [(0.5, 10, 500), (0.05, 20, 500), (0.01, 20, 5000)])
def test_min_samples_is_the_papers_draw(beta, clients, size):
    labels = balanced(10, size)
    members = list(np.arange(10 * size).reshape(10, size))
    owner, notes = Dirichlet(beta=beta, min_samples=10).owners(members, clients, np.random.default_rng(7))
    counts = np.array([np.bincount(owner[indices], minlength=clients) for indices in members])
    expected = papers_draw([size] * 10, clients, beta, 10, np.random.default_rng(7))
    assert np.abs(counts - expected).max() <= 1  # sums in another order may round a share of a sample otherwise
    assert counts.sum(0).min() >= 10
    assert notes == ()
    check(partition(labels, 10, kind="dirichlet", clients=clients, seed=1, beta=beta, min_samples=10), labels, clients)


def test_a_client_with_its_even_share_gets_no_more():
    members = list(np.arange(5000).reshape(10, 500))
    owner, _ = Dirichlet(beta=0.05, min_samples=10).owners(members, 20, np.random.default_rng(3))
    counts = np.array([np.bincount(owner[indices], minlength=20) for indices in members])
    full = np.cumsum(counts, axis=0)[:-1] >= 5000 / 20
    assert full.any()
    assert not counts[1:-1][full[:-1]].any()


def test_a_quota_lets_a_client_have_several_even_shares():
    members = list(np.arange(5000).reshape(10, 500))
    largest = []
    for quota in (1.0, 3.0):
        owner, _ = Dirichlet(beta=0.05, min_samples=10, quota=quota).owners(members, 20, np.random.default_rng(3))
        counts = np.array([np.bincount(owner[indices], minlength=20) for indices in members])
        full = np.cumsum(counts, axis=0)[:-1] >= quota * 5000 / 20
        assert not counts[1:-1][full[:-1]].any()
        largest.append(counts.sum(0).max())
    assert largest[0] < largest[1]


@pytest.mark.parametrize(("beta", "clients"), [(0.5, 1), (1e300, 2)])
def test_classes_without_samples_after_everyone_has_an_even_share(beta, clients):
    members = [*np.arange(40).reshape(2, 20), *np.empty((2, 0), dtype=np.int64)]
    owner, _ = Dirichlet(beta=beta, min_samples=10).owners(members, clients, np.random.default_rng(0))
    assert np.bincount(owner).tolist() == [40 // clients] * clients


def test_what_cannot_be_drawn_is_said():
    labels = balanced(10, 100)
    with pytest.raises(InputError, match="100 clients with at least 11 samples each, but there are 1000"):
        partition(labels, 10, kind="dirichlet", clients=100, seed=0, beta=1.0, min_samples=11)
    with pytest.raises(InputError, match="some of 100 clients always had fewer than 10 samples; lower --min-samples"):
        partition(labels, 10, kind="dirichlet", clients=100, seed=0, beta=0.01, min_samples=10)


def test_without_it_nothing_changes_and_with_it_the_name_stays():
    labels = balanced(10, 100)
    plain, zero = (
        partition(labels, 10, kind="dirichlet", clients=20, seed=5, beta=0.1, **kw) for kw in ({}, {"min_samples": 0})
    )
    assert np.array_equal(plain.order, zero.order)
    assert Dirichlet(beta=0.1, min_samples=10).label() == "dirichlet 0.1"
    assert Dirichlet(beta=0.1, min_samples=10).words() == "Dirichlet 0.1, at least 10 samples"
