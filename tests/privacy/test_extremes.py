"""The accountant where there is hardly any privacy, or nearly perfect privacy: quick, finite and monotone."""

import math
import time

import pytest

from raysim.privacy.accounting import dp_sgd_epsilon, dp_sgd_noise_multiplier, gaussian_epsilon


@pytest.mark.parametrize(("rate", "steps"), [(0.3, 6), (0.1, 18_000), (1.0, 18_000)])
@pytest.mark.parametrize("epsilon", [1e-6, 5000, 1e6, 1e9])
def test_any_epsilon_is_answered_soon(epsilon, rate, steps):
    started = time.process_time()
    noise = dp_sgd_noise_multiplier(epsilon, rate, steps, 1e-5)
    assert 0 < noise < math.inf
    assert dp_sgd_epsilon(noise, rate, steps, 1e-5) <= epsilon * 1.001
    assert time.process_time() - started < 10


@pytest.mark.parametrize("noise", [1e-3, 0.01, 0.05])
def test_with_every_sample_in_every_batch_it_is_the_gaussian_mechanism(noise):
    exact = gaussian_epsilon(1, noise, 1e-5, releases=6)
    assert dp_sgd_epsilon(noise, 1.0, 6, 1e-5) == pytest.approx(exact, rel=1e-6)
    assert dp_sgd_noise_multiplier(exact, 1.0, 6, 1e-5) == pytest.approx(noise, rel=1e-6)


def test_less_noise_is_less_private_also_where_the_bound_takes_over():
    found = [dp_sgd_epsilon(noise, 0.1, 6, 1e-5) for noise in (10, 1, 0.3, 0.1, 0.06, 0.04, 0.02, 0.01, 1e-3, 1e-9)]
    assert found == sorted(found)
    assert math.isfinite(found[-1])


def test_gaussian_at_extreme_noise(recwarn):
    found = [gaussian_epsilon(1, noise, 1e-5) for noise in (1e9, 1e3, 1, 1e-3, 1.1e-6, 0.9e-6, 1e-8, 1e-100)]
    assert found == sorted(found)
    assert all(map(math.isfinite, found))
    assert gaussian_epsilon(1, 1e-300, 1e-5) == math.inf
    near = [gaussian_epsilon(1, noise, 1e-5) * noise**2 for noise in (1.001e-6, 0.999e-6)]
    assert near[0] == pytest.approx(near[1], rel=1e-4)
    assert not [warning for warning in recwarn if issubclass(warning.category, RuntimeWarning)]
