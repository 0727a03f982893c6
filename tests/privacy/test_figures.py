import numpy as np
import pytest
from scipy.stats import beta, binom, t

from raysim.privacy.figures import (
    Figure,
    attack_figures,
    auc,
    auc_interval,
    describe,
    mean_of_groups,
    share_interval,
    tpr,
    tpr_interval,
)


@pytest.mark.parametrize("seed", range(5))
def test_auc_and_tpr_against_a_count_of_all_pairs_and_thresholds(seed):
    draw = np.random.default_rng(seed)
    members, others = draw.integers(0, 30, 57) / 7, draw.integers(-4, 24, 83) / 7  # many are equal
    wins = [(m > o) + (m == o) / 2 for m in members for o in others]
    assert auc(members, others) == pytest.approx(np.mean(wins))
    for rate in (0.0, 0.012, 0.1, 0.5, 1.0):
        # A threshold may lie at any score, or below all of them.
        rates = [((others > at).mean(), (members > at).mean()) for at in [*members, *others, -np.inf]]
        assert tpr(members, others, rate) == max(found for false, found in rates if false <= rate)


def test_perfect_and_useless_scores():
    low, high = np.arange(500.0), np.arange(1000.0, 1500.0)
    assert (auc(high, low), auc(low, high), auc(low, low)) == (1, 0, 0.5)
    assert (tpr(high, low, 0.01), tpr(low, high, 0.01)) == (1, 0)
    assert auc_interval(1.0, 500, 500)[0] < 1 == pytest.approx(auc_interval(1.0, 500, 500)[1])


def test_a_rate_that_so_few_samples_cannot_show():
    draw = np.random.default_rng(0)
    figures = attack_figures("model", draw.normal(size=200), draw.normal(size=200), "how")
    assert [figure.name for figure in figures] == ["model.auc", "model.tpr_at_1%_fpr", "model.tpr_at_0.1%_fpr"]
    assert figures[1].value is not None
    assert figures[2] == Figure("model.tpr_at_0.1%_fpr", None, None, "too few samples (200 others)")
    (only,) = attack_figures("x", np.empty(0), np.empty(0), "how")
    assert (only.value, only.note) == (None, "too few samples (0 members, 0 others)")
    (only,) = attack_figures("x", np.array([1.0, np.nan, 2.0]), np.zeros(3), "how")
    assert only.value is None
    assert attack_figures("x", draw.normal(size=1000), draw.normal(size=1000), "how")[2].value is not None


def worlds(kind: str, count: int, size: int):
    """Scores with a known AUC and known true positives at 1 %."""
    draw = np.random.default_rng(1)
    for _ in range(count):
        others = draw.normal(size=size)
        if kind == "shifted":  # AUC Φ(1/√2), TPR Φ(1 − 2.3263)
            yield draw.normal(1, 1, size), others
        elif kind == "same":
            yield draw.normal(size=size), others
        else:  # a fifth are copies, which nothing else comes near
            yield np.where(draw.random(size) < 0.2, 9.0, draw.normal(size=size)), others


@pytest.mark.parametrize(
    ("kind", "area", "found"), [("same", 0.5, 0.01), ("shifted", 0.76025, 0.09236), ("copies", 0.6, 0.208)]
)
def test_intervals_hold_the_truth_about_as_often_as_they_say(kind, area, found):
    held = [
        (low <= area <= high, few <= found <= many)
        for members, others in worlds(kind, 400, 300)
        for low, high in [auc_interval(auc(members, others), 300, 300)]
        for few, many in [tpr_interval(members, others, 0.01)]
    ]
    areas, shares = np.mean(held, 0)
    assert 0.925 <= areas <= 0.98
    assert shares >= 0.95  # it is made to err on the wide side


def test_the_interval_of_a_tpr_by_hand():
    """Both ends: with 200 others and a rate of 1 %, 0 to 5 or 6 of them are above the true threshold."""
    others = np.arange(200.0)  # the highest are 199, 198, …
    members = np.array([195.5] * 10 + [198.5] * 20 + [250.0] * 30 + [0.0] * 40)
    chances = binom.cdf(np.arange(201), 200, 0.01)
    fewest, most = (int(np.argmax(chances >= share)) for share in (0.0125, 0.9875))
    assert (fewest, most) == (0, 6)
    low, high = tpr_interval(members, others, 0.01)
    assert low == 0  # perhaps none of the others is above the threshold: it may be as high as one likes
    assert high == pytest.approx(beta.ppf(0.9875, 61, 40))  # six above: 195.5 is above 193
    # At 5 % some others are above in any case, so that the strict threshold is one of their scores.
    fewest, most = (int(np.argmax(binom.cdf(np.arange(201), 200, 0.05) >= share)) for share in (0.0125, 0.9875))
    strict, loose = np.sort(others)[::-1][[fewest - 1, most]]
    low, high = tpr_interval(members, others, 0.05)
    assert low == pytest.approx(beta.ppf(0.0125, (members > strict).sum(), (members <= strict).sum() + 1))
    assert high == pytest.approx(beta.ppf(0.9875, (members > loose).sum() + 1, (members <= loose).sum()))


def test_the_interval_of_a_share_is_clopper_and_pearsons():
    assert share_interval(7, 50) == pytest.approx((beta.ppf(0.025, 7, 44), beta.ppf(0.975, 8, 43)))
    assert share_interval(0, 50) == pytest.approx((0, 1 - 0.025 ** (1 / 50)))
    assert share_interval(50, 50, error=0.1) == pytest.approx((0.05 ** (1 / 50), 1))


def test_a_mean_over_groups():
    """Groups of one value each: Student's ordinary interval; of equal values, as if each group had one."""
    values = np.random.default_rng(0).normal(size=12)
    _, (low, high) = mean_of_groups([np.array([value]) for value in values])
    assert (low, high) == pytest.approx(t.interval(0.95, 11, values.mean(), values.std(ddof=1) / 12**0.5))
    assert mean_of_groups([np.full(5, value) for value in values])[1] == pytest.approx((low, high))


def test_the_line_that_is_printed():
    figures = [
        Figure("model.auc", 0.5125, (0.49, 0.535)), Figure("x.auc", None, note="not attacked: why"),
        Figure("x.epsilon", None, note="no certificate: why"), Figure("y.epsilon", 5.0527), Figure("psnr", 3.0),
    ]  # fmt: skip
    expected = "attack on model AUC 0.512 [0.490, 0.535]; x not attacked: why; y ε 5.05; no certificate for x"
    assert describe(figures) == expected
