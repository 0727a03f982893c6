"""Certified ε of (ε, δ)-differential privacy, computed by dp-accounting.

A certificate is about a mechanism: it covers what the mechanism releases and nothing else computed from the same data,
and it needs noise that nobody can reproduce. A simulation, whose noise comes from a known seed, only simulates one.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

# Step of the accountant's grid for the privacy loss. It rounds ε upwards, with this step by a few thousandths; 1e-4
# takes ten times as long.
LOSS_GRID = 1e-3
# Its time grows with the losses, and e^709 is no float. Beyond this loss, and this ε, a bound in closed form is used:
# such an ε says only that there is hardly any privacy.
LARGEST_LOSS = 700.0
LARGEST_EPSILON = 500.0
LARGE_EPSILON = 100.0  # above it, a grid in proportion and noise to 0.1 %, since 0.001 of 1 would be a coarse step
TINY_NOISE = 1e-6  # the exact solution needs more digits than a float has
_QUIET = np.errstate(divide="ignore", over="ignore")  # dp-accounting takes log 0 and 1/0, and handles the infinities


@_QUIET
def gaussian_epsilon(sensitivity: float, sigma: float, delta: float, releases: int = 1) -> float:
    """Return the ε of adding N(0, σ²) to a vector that one sample changes by at most `sensitivity` (L2).

    It is exact for any ε (the analytic Gaussian mechanism); with hardly any noise it is an upper bound, which ε
    approaches. Several releases of the same data, each with fresh noise, are equivalent to one with σ/√releases. The
    adjacency is the one that the sensitivity refers to.

    >>> round(gaussian_epsilon(sensitivity=1, sigma=1, delta=1e-5), 3)
    4.377
    """
    from dp_accounting import get_epsilon_gaussian
    from scipy.stats import norm

    if sensitivity == 0 or releases == 0:
        return 0.0
    noise = sigma / (sensitivity * math.sqrt(releases))
    if 0 < noise < TINY_NOISE:
        # The loss is normal with mean 1/2σ² and deviation 1/σ; ε is at most its quantile.
        return math.inf if noise < 1e-150 else 0.5 / noise**2 + max(0.0, float(norm.isf(delta))) / noise
    return float(get_epsilon_gaussian(noise, delta))


@_QUIET
def dp_sgd_epsilon(noise_multiplier: float, sampling_rate: float, steps: int, delta: float) -> float:
    """Return the ε of `steps` noisy sums of clipped per-sample gradients, each over a fresh Poisson sample of the data.

    Every sample is in a step's batch with probability `sampling_rate`, independently; its gradient is clipped to norm
    C, and N(0, (noise_multiplier·C)²) is added to the sum. Adjacency: one sample added or removed.

    >>> round(dp_sgd_epsilon(noise_multiplier=1, sampling_rate=0.01, steps=1000, delta=1e-5), 2)
    1.83
    """
    if noise_multiplier == 0:
        return math.inf
    tiny_steps = sampling_rate >= 1 and 1 / noise_multiplier < LOSS_GRID
    if tiny_steps or _loss_scale(noise_multiplier, sampling_rate, steps) > LARGEST_LOSS:
        times, rest = _times_in_a_batch(sampling_rate, steps, delta)
        return gaussian_epsilon(1, noise_multiplier, rest, times)
    return _composed_epsilon(noise_multiplier, sampling_rate, steps, delta)


@_QUIET
def dp_sgd_noise_multiplier(epsilon: float, sampling_rate: float, steps: int, delta: float) -> float:
    """Return the least noise multiplier, to within 0.001, with which `dp_sgd_epsilon` is at most ε; 0 for ε = ∞.

    To 0.1 % above LARGE_EPSILON; above LARGEST_EPSILON, what the bound in closed form needs.

    >>> sigma = dp_sgd_noise_multiplier(epsilon=2, sampling_rate=0.01, steps=1000, delta=1e-5)
    >>> 1.98 < dp_sgd_epsilon(sigma, 0.01, 1000, 1e-5) <= 2
    True
    """
    import dp_accounting

    if epsilon == math.inf:
        return 0.0
    tiny_steps = sampling_rate >= 1 and epsilon / (5 * math.sqrt(steps)) < LOSS_GRID
    if tiny_steps or epsilon > LARGE_EPSILON:
        times, rest = _times_in_a_batch(sampling_rate, steps, delta)
        enough = float(dp_accounting.get_sigma_gaussian(epsilon, rest)) * math.sqrt(max(1, times))
        if sampling_rate >= 1 or epsilon > LARGEST_EPSILON:
            return enough
        grid = LOSS_GRID * epsilon / LARGE_EPSILON
        return _least(lambda noise: _composed_epsilon(noise, sampling_rate, steps, delta, grid) <= epsilon, enough)
    low, guess = 0.0, 1.0
    while _loss_scale(guess, sampling_rate, steps) > LARGEST_LOSS:  # it would take long to see that this is too little
        low, guess = guess, 2 * guess + 1
    bracket = dp_accounting.LowerEndpointAndGuess(low, guess)
    return dp_accounting.calibrate_dp_mechanism(
        _accountant, lambda noise: _dp_sgd(noise, sampling_rate, steps), epsilon, delta, bracket, tol=1e-3
    )


def _least(enough: Callable[[float], bool], high: float, precision: float = 1e-3) -> float:
    """Return the least noise that is enough, to within this share of it, where `high` is enough."""
    low = high / 2
    while enough(low):
        low, high = low / 2, low
    while high > low * (1 + precision):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _times_in_a_batch(sampling_rate: float, steps: int, delta: float) -> tuple[int, float]:
    """Return how often a sample is in a batch, exceeded with a tenth of δ, and the rest of δ.

    Whoever knows in which steps it was sees that many plain Gaussian releases, and learns at least as much as who does
    not know. The bound is exact if every sample is in every batch, and approached as the noise vanishes.
    """
    from scipy.stats import binom

    if sampling_rate >= 1:
        return steps, delta
    return int(binom.isf(delta / 10, steps, sampling_rate)), 0.9 * delta


def _loss_scale(noise_multiplier: float, sampling_rate: float, steps: int) -> float:
    """Estimate the largest privacy loss that occurs, to which the size of the accountant's arrays is proportional.

    One step's largest, the mean of all and eight deviations; with little noise those of a step that is seen to contain
    the sample or not, with much those of the χ² divergence.
    """
    half = 0.5 / noise_multiplier**2 if noise_multiplier > 1e-150 else math.inf
    if half > LARGEST_LOSS:
        return half
    chi2 = sampling_rate**2 * math.expm1(min(2 * half, 700))
    mean, square = min(sampling_rate * half, chi2), min(sampling_rate * half * (half + 2), 2 * chi2)
    return half + 8 / noise_multiplier + steps * mean + 8 * math.sqrt(steps * square)


def _composed_epsilon(
    noise_multiplier: float, sampling_rate: float, steps: int, delta: float, grid: float = LOSS_GRID
) -> float:
    return float(_accountant(grid).compose(_dp_sgd(noise_multiplier, sampling_rate, steps)).get_epsilon(delta))


def _accountant(grid: float = LOSS_GRID):
    from dp_accounting.pld import PLDAccountant

    return PLDAccountant(value_discretization_interval=grid)


def _dp_sgd(noise_multiplier: float, sampling_rate: float, steps: int) -> Any:
    import dp_accounting as dp

    step = dp.PoissonSampledDpEvent(sampling_rate, dp.GaussianDpEvent(noise_multiplier))
    return dp.SelfComposedDpEvent(step, steps)
