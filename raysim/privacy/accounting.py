"""Certified ε of (ε, δ)-differential privacy, computed by dp-accounting.

A certificate is about a mechanism: it covers what the mechanism releases and nothing else computed from the same data,
and it needs noise that nobody can reproduce. A simulation, whose noise comes from a known seed, only simulates one.
"""

import math
from typing import Any

# Step of the accountant's grid for the privacy loss. It rounds ε upwards, with this step by a few thousandths; 1e-4
# takes ten times as long.
LOSS_GRID = 1e-3


def gaussian_epsilon(sensitivity: float, sigma: float, delta: float, releases: int = 1) -> float:
    """ε of adding N(0, σ²) to each coordinate of a vector that one sample changes by at most `sensitivity` (L2).

    It is exact for any ε (the analytic Gaussian mechanism). Several releases of the same data, each with fresh noise,
    are equivalent to one with σ/√releases. The adjacency is the one that the sensitivity refers to.

    >>> round(gaussian_epsilon(sensitivity=1, sigma=1, delta=1e-5), 3)
    4.377
    """
    from dp_accounting import get_epsilon_gaussian

    if sensitivity == 0 or releases == 0:
        return 0.0
    return get_epsilon_gaussian(sigma / (sensitivity * math.sqrt(releases)), delta)


def dp_sgd_epsilon(noise_multiplier: float, sampling_rate: float, steps: int, delta: float) -> float:
    """ε of `steps` noisy sums of clipped per-sample gradients, each over a fresh Poisson sample of the data.

    Every sample is in a step's batch with probability `sampling_rate`, independently; its gradient is clipped to norm
    C, and N(0, (noise_multiplier·C)²) is added to the sum. Adjacency: one sample added or removed.

    >>> round(dp_sgd_epsilon(noise_multiplier=1, sampling_rate=0.01, steps=1000, delta=1e-5), 2)
    1.83
    """
    if noise_multiplier == 0:
        return math.inf
    return _accountant().compose(_dp_sgd(noise_multiplier, sampling_rate, steps)).get_epsilon(delta)


def dp_sgd_noise_multiplier(epsilon: float, sampling_rate: float, steps: int, delta: float) -> float:
    """The least noise multiplier, to within 0.001, with which `dp_sgd_epsilon` is at most ε; 0 for ε = ∞.

    >>> sigma = dp_sgd_noise_multiplier(epsilon=2, sampling_rate=0.01, steps=1000, delta=1e-5)
    >>> 1.98 < dp_sgd_epsilon(sigma, 0.01, 1000, 1e-5) <= 2
    True
    """
    import dp_accounting

    if epsilon == math.inf:
        return 0.0
    bracket = dp_accounting.LowerEndpointAndGuess(0, 1)
    return dp_accounting.calibrate_dp_mechanism(
        _accountant, lambda noise: _dp_sgd(noise, sampling_rate, steps), epsilon, delta, bracket, tol=1e-3
    )


def _accountant() -> Any:
    from dp_accounting.pld import PLDAccountant

    return PLDAccountant(value_discretization_interval=LOSS_GRID)


def _dp_sgd(noise_multiplier: float, sampling_rate: float, steps: int) -> Any:
    import dp_accounting as dp

    step = dp.PoissonSampledDpEvent(sampling_rate, dp.GaussianDpEvent(noise_multiplier))
    return dp.SelfComposedDpEvent(step, steps)
