"""ε against computations that share nothing with dp-accounting."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from raysim.privacy.accounting import dp_sgd_epsilon, dp_sgd_noise_multiplier, gaussian_epsilon


def analytic_gaussian(sensitivity, sigma, delta):
    """Balle & Wang (2018), theorem 8: δ as a function of ε, solved for ε."""
    ratio = sensitivity / sigma

    def excess(epsilon):
        tail = math.exp(epsilon + norm.logcdf(-ratio / 2 - epsilon / ratio))
        return norm.cdf(ratio / 2 - epsilon / ratio) - tail - delta

    return brentq(excess, 0, 500, xtol=1e-10)


@pytest.mark.parametrize(("sensitivity", "sigma", "delta"), [(1, 1, 1e-5), (0.08, 0.039, 0.01), (2, 0.7, 1e-6)])
@pytest.mark.parametrize("releases", [1, 10])
def test_gaussian_against_balle_and_wang(sensitivity, sigma, delta, releases):
    expected = analytic_gaussian(sensitivity * math.sqrt(releases), sigma, delta)
    assert gaussian_epsilon(sensitivity, sigma, delta, releases) == pytest.approx(expected, rel=1e-6)


def test_gaussian_composition_is_that_of_the_joint_release():
    """k releases are one of k-fold the dimension, whose L2 sensitivity is √k times as large."""
    joint = np.linalg.norm(np.full(16, 0.3))
    assert gaussian_epsilon(0.3, 1, 1e-5, releases=16) == pytest.approx(analytic_gaussian(joint, 1, 1e-5), rel=1e-6)


@pytest.mark.parametrize(
    ("m", "std", "delta", "releases", "expected"),
    [(100, 0.039, 0.01, 1, 6.2), (100, 0.039, 0.01, 10, 35), (100, 1, 1e-5, 1, 0.27), (100, 1, 1e-5, 200, 5.05)],
)
def test_feddpms_examples(m, std, delta, releases, expected):
    """Means of m latent vectors of 64 coordinates in [0, 1]: L2 sensitivity √64/m."""
    assert gaussian_epsilon(math.sqrt(64) / m, std, delta, releases) == pytest.approx(expected, rel=0.015)


def test_nothing_released_costs_nothing_and_no_noise_certifies_nothing():
    assert gaussian_epsilon(1, 1, 1e-5, releases=0) == gaussian_epsilon(0, 1, 1e-5) == 0
    assert gaussian_epsilon(1, 0, 1e-5) == dp_sgd_epsilon(0, 0.1, 10, 1e-5) == math.inf
    assert dp_sgd_noise_multiplier(math.inf, 0.1, 10, 1e-5) == 0


def densities(q, sigma):
    """Outputs with and without the sample, along the direction of its clipped gradient."""
    x = np.linspace(-14 * sigma, 1 + 14 * sigma, 400_001)
    without = norm.pdf(x, 0, sigma)
    return x[1] - x[0], (1 - q) * without + q * norm.pdf(x, 1, sigma), without


def rdp_epsilon(q, sigma, steps, delta):
    """Rényi divergences by quadrature, both directions, and the conversion of Canonne, Kamath & Steinke (2020)."""
    dx, with_it, without = densities(q, sigma)
    best = math.inf
    for order in [1 + a / 10 for a in range(1, 100)] + [*range(11, 64)]:
        divergences = [
            math.log((np.exp(order * np.log(p) + (1 - order) * np.log(r))).sum() * dx) / (order - 1)
            for p, r in ((with_it, without), (without, with_it))
        ]
        conversion = math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
        best = min(best, steps * max(divergences) + conversion)
    return best


def convolved_epsilon(q, sigma, doublings, delta, grid=5e-4):
    """2^doublings steps: the distribution of the privacy loss on a grid, convolved with itself."""
    dx, with_it, without = densities(q, sigma)
    worst = 0.0
    for p, r in ((with_it, without), (without, with_it)):
        loss = np.rint(np.log(p / r) / grid).astype(int)
        low = loss.min()
        mass = np.bincount(loss - low, weights=p * dx)
        for _ in range(doublings):
            size = 2 * len(mass) - 1
            mass, low = np.clip(np.fft.irfft(np.fft.rfft(mass, size) ** 2, size), 0, None), 2 * low
        losses = grid * (low + np.arange(len(mass)))

        def delta_at(epsilon, mass=mass, losses=losses):
            above = losses > epsilon
            return (mass[above] * -np.expm1(epsilon - losses[above])).sum()

        worst = max(worst, brentq(lambda e: delta_at(e) - delta, 0, 60))
    return worst


@pytest.mark.parametrize(("q", "sigma", "doublings"), [(0.01, 1.0, 0), (0.2, 2.0, 3), (0.05, 1.0, 4)])
def test_dp_sgd_against_the_convolved_privacy_loss(q, sigma, doublings):
    expected = convolved_epsilon(q, sigma, doublings, delta=1e-5)
    assert dp_sgd_epsilon(sigma, q, 2**doublings, 1e-5) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.01, 1.0, 1000), (0.05, 2.0, 500)])
def test_dp_sgd_is_below_the_renyi_bound_and_near_it(q, sigma, steps):
    bound = rdp_epsilon(q, sigma, steps, delta=1e-5)
    assert 0.8 * bound < dp_sgd_epsilon(sigma, q, steps, 1e-5) < bound


def test_all_samples_in_every_step_is_the_gaussian_mechanism():
    assert dp_sgd_epsilon(4, 1, 10, 1e-5) == pytest.approx(gaussian_epsilon(1, 4, 1e-5, releases=10), rel=0.01)


@pytest.mark.parametrize("epsilon", [0.5, 5])
def test_calibrated_noise_meets_the_target_and_hardly_more(epsilon):
    noise = dp_sgd_noise_multiplier(epsilon, 0.02, 500, 1e-5)
    assert dp_sgd_epsilon(noise, 0.02, 500, 1e-5) <= epsilon < dp_sgd_epsilon(noise - 0.002, 0.02, 500, 1e-5)
