"""The success of attacks that tell members from others: areas under ROC curves, true positives, and their intervals.

Scores are higher for samples that the attack takes for members. Intervals have a confidence of 95 %.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

NORMAL = 1.959964  # 97.5 % quantile of the normal distribution
FALSE_POSITIVES = (0.01, 0.001)  # rates of false positives at which true positives are reported
TOO_FEW = "too few samples"


@dataclass(frozen=True)
class Figure:
    """A line of privacy.json; the note says why where there is no value."""

    name: str
    value: float | None
    interval: tuple[float, float] | None = None
    note: str = ""


def attack_figures(name: str, members: np.ndarray, others: np.ndarray, note: str) -> list[Figure]:
    """Return the figures of an attack, from its scores of members and of as many others."""
    if min(len(members), len(others)) < 2:
        return [Figure(f"{name}.auc", None, note=f"{TOO_FEW} ({len(members)} members, {len(others)} others)")]
    if not (np.isfinite(members).all() and np.isfinite(others).all()):
        return [Figure(f"{name}.auc", None, note="not attacked: the model gives values that are not finite")]
    area = auc(members, others)
    figures = [Figure(f"{name}.auc", area, auc_interval(area, len(members), len(others)), note)]
    for rate in FALSE_POSITIVES:
        label = f"{name}.tpr_at_{100 * rate:g}%_fpr"
        if not _allowed(others, rate):
            figures.append(Figure(label, None, note=f"{TOO_FEW} ({len(others)} others)"))
        else:
            figures.append(Figure(label, tpr(members, others, rate), tpr_interval(members, others, rate)))
    return figures


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """Return the area under the ROC curve.

    It is the probability that a member scores higher than another sample; ties count half.

    >>> auc(np.array([3.0, 1.0]), np.array([2.0, 1.0]))
    0.625
    """
    ranked = np.sort(others)
    below, upto = (np.searchsorted(ranked, members, side) for side in ("left", "right"))
    return float((below + upto).sum() / 2 / (len(members) * len(others)))


def auc_interval(area: float, members: int, others: int) -> tuple[float, float]:
    """Return the interval of an area under the ROC curve, by Newcombe (2006), method 5.

    It takes Hanley and McNeil's variance at the interval's ends, so that an area of 1 is not certain.
    """
    half = (members + others) / 2 - 1

    def too_far(true: float) -> bool:
        spread = 1 + half * (1 - true) / (2 - true) + half * true / (1 + true)
        return (area - true) ** 2 > NORMAL**2 * true * (1 - true) * spread / (members * others)

    return _last(too_far, area, 0.0), _last(too_far, area, 1.0)


def _last(too_far: Callable[[float], bool], inside: float, outside: float) -> float:
    """Return the last point of an interval on the way from `inside`, which is in it, to `outside`, by bisection."""
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if too_far(middle) else (middle, outside)
    return inside


def threshold(others: np.ndarray, allowed: int) -> float:
    """Return the score above which at most `allowed` of the others lie."""
    return float(np.sort(others)[-allowed - 1]) if allowed < len(others) else -math.inf


def _allowed(others: np.ndarray, rate: float) -> int:
    """Return the number of others that may be taken for members at that rate of false positives."""
    return math.floor(len(others) * rate + 1e-9)  # the product may fall short of a whole number by its last bit


def tpr(members: np.ndarray, others: np.ndarray, rate: float) -> float:
    """Return the rate of true positives where at most the share `rate` of the others is taken for members.

    >>> tpr(np.array([4.0, 3.0, 1.0]), np.array([3.5, 2.0, 0.0, 0.0]), 0.25)
    0.6666666666666666
    """
    return float((members > threshold(others, _allowed(others, rate))).mean())


def tpr_interval(members: np.ndarray, others: np.ndarray, rate: float) -> tuple[float, float]:
    """Return the interval of the rate of true positives at exactly that rate of false positives.

    The threshold of that rate has a binomial number of the others above it, so it lies between two of their scores; at
    each of these the number of members found is binomial again (Clopper and Pearson). Threshold and members have 2.5 %
    of the error each. The interval errs on the wide side.
    """
    from scipy.special import bdtr

    counts = np.arange(len(others) + 1)
    chances = bdtr(counts, len(others), rate)  # that at most so many of the others are above the threshold
    fewest, most = (int(np.searchsorted(chances, share)) for share in (0.0125, 0.9875))
    strict = threshold(others, fewest - 1) if fewest else math.inf  # at least as high as the true threshold
    low = share_interval(int((members > strict).sum()), len(members), error=0.025)[0]
    high = share_interval(int((members > threshold(others, most)).sum()), len(members), error=0.025)[1]
    return low, high


def share_interval(found: int, total: int, error: float = 0.05) -> tuple[float, float]:
    """Return Clopper and Pearson's interval of a share that was estimated as `found` out of `total`."""
    from scipy.special import betaincinv

    low = betaincinv(found, total - found + 1, error / 2) if found else 0.0
    high = betaincinv(found + 1, total - found, 1 - error / 2) if found < total else 1.0
    return float(low), float(high)


def mean_of_groups(groups: list[np.ndarray]) -> tuple[float, tuple[float, float] | None]:
    """Return the mean of all values, with Student's interval over the groups.

    Values in one group are not independent, so the groups are what counts.

    >>> mean_of_groups([np.array([1.0, 3.0])])
    (2.0, None)
    """
    from scipy.special import stdtrit

    total, mean = sum(map(len, groups)), float(np.concatenate(groups).mean())
    if len(groups) < 2:
        return mean, None
    apart = np.array([(group - mean).sum() for group in groups]) / total
    freedom = len(groups) - 1
    error = float(stdtrit(freedom, 0.975) * np.sqrt((apart**2).sum() * len(groups) / freedom))
    return mean, (mean - error, mean + error)


def describe(figures: list[Figure]) -> str:
    """Return one line with the results of the attacks and the certified ε."""
    phrases, uncertified = [], []
    for figure in figures:
        what, _, kind = figure.name.rpartition(".")
        if kind == "auc" and figure.interval:
            low, high = figure.interval
            phrases.append(f"attack on {what} AUC {figure.value:.3f} [{low:.3f}, {high:.3f}]")
        elif kind == "auc":
            phrases.append(f"{what} {figure.note}")
        elif kind == "epsilon" and figure.value is not None:
            phrases.append(f"{what} ε {figure.value:.3g}")
        elif kind == "epsilon":
            uncertified.append(what)
    if uncertified:
        phrases.append(f"no certificate for {', '.join(uncertified)}")
    return "; ".join(phrases)
