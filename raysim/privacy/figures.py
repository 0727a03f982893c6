"""How well an attack tells members from others: area under the ROC curve, true positives at few false ones, intervals.

Scores are higher for what the attack takes for a member. Intervals have a confidence of 95 %.
"""

import math
from dataclasses import dataclass

import numpy as np

NORMAL = 1.959964  # its 97.5 % quantile
FALSE_POSITIVES = (0.01, 0.001)  # rates at which true positives are reported
TOO_FEW = "too few samples"


@dataclass(frozen=True)
class Figure:
    """A line of privacy.json. No value: the note says why."""

    name: str
    value: float | None
    interval: tuple[float, float] | None = None
    note: str = ""


def attack_figures(name: str, members: np.ndarray, others: np.ndarray, note: str) -> list[Figure]:
    """What an attack's scores of members and of as many others come to."""
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
    """The chance that a member scores higher than another sample; half of it where they are equal.

    >>> auc(np.array([3.0, 1.0]), np.array([2.0, 1.0]))
    0.625
    """
    ranked = np.sort(others)
    below, upto = (np.searchsorted(ranked, members, side) for side in ("left", "right"))
    return float((below + upto).sum() / 2 / (len(members) * len(others)))


def auc_interval(area: float, members: int, others: int) -> tuple[float, float]:
    """Hanley and McNeil's variance taken at the interval's ends (Newcombe 2006, method 5), so that 1 is not certain."""
    half = (members + others) / 2 - 1

    def too_far(true: float) -> bool:
        spread = 1 + half * (1 - true) / (2 - true) + half * true / (1 + true)
        return (area - true) ** 2 > NORMAL**2 * true * (1 - true) * spread / (members * others)

    return _last(too_far, area, 0.0), _last(too_far, area, 1.0)


def _last(too_far, inside: float, outside: float) -> float:
    """From a point inside an interval to an end of the range: where the interval ends."""
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if too_far(middle) else (middle, outside)
    return inside


def threshold(others: np.ndarray, allowed: int) -> float:
    """The score above which at most so many of the others lie."""
    return float(np.sort(others)[-allowed - 1]) if allowed < len(others) else -math.inf


def _allowed(others: np.ndarray, rate: float) -> int:
    """False positives of that rate; the product may fall short of a whole number by its last bit."""
    return math.floor(len(others) * rate + 1e-9)


def tpr(members: np.ndarray, others: np.ndarray, rate: float) -> float:
    """Members found where at most that share of the others is taken for members.

    >>> tpr(np.array([4.0, 3.0, 1.0]), np.array([3.5, 2.0, 0.0, 0.0]), 0.25)
    0.6666666666666666
    """
    return float((members > threshold(others, _allowed(others, rate))).mean())


def tpr_interval(members: np.ndarray, others: np.ndarray, rate: float) -> tuple[float, float]:
    """Of the true positives at exactly that rate: the chance of the threshold and of the members, 2.5 % of error each.

    The threshold of that rate has a binomial number of the others above it, so it lies between two of their scores; at
    each of these the members found are binomial again (Clopper and Pearson). It errs on the wide side.
    """
    from scipy.special import bdtr

    counts = np.arange(len(others) + 1)
    chances = bdtr(counts, len(others), rate)  # of at most so many above it
    fewest, most = (int(np.searchsorted(chances, share)) for share in (0.0125, 0.9875))
    strict = threshold(others, fewest - 1) if fewest else math.inf  # at least as high as the true threshold
    low = share_interval(int((members > strict).sum()), len(members), error=0.025)[0]
    high = share_interval(int((members > threshold(others, most)).sum()), len(members), error=0.025)[1]
    return low, high


def share_interval(found: int, total: int, error: float = 0.05) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share that was found in so many of all."""
    from scipy.special import betaincinv

    low = betaincinv(found, total - found + 1, error / 2) if found else 0.0
    high = betaincinv(found + 1, total - found, 1 - error / 2) if found < total else 1.0
    return float(low), float(high)


def mean_of_groups(groups: list[np.ndarray]) -> tuple[float, tuple[float, float] | None]:
    """Of all values, with Student's interval over the groups: what is in one group is not independent.

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
    """The attacks and what is certified, in a line."""
    told, uncertified = [], []
    for figure in figures:
        what, _, kind = figure.name.rpartition(".")
        if kind == "auc" and figure.interval:
            low, high = figure.interval
            told.append(f"attack on {what} AUC {figure.value:.3f} [{low:.3f}, {high:.3f}]")
        elif kind == "auc":
            told.append(f"{what} {figure.note}")
        elif kind == "epsilon" and figure.value is not None:
            told.append(f"{what} ε {figure.value:.3g}")
        elif kind == "epsilon":
            uncertified.append(what)
    if uncertified:
        told.append(f"no certificate for {', '.join(uncertified)}")
    return "; ".join(told)
