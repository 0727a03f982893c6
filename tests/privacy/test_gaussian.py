"""FedDPMS's figures: the paper's ε, and what the noise certifies of a whole latent vector."""

import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from raysim.privacy.gaussian import of_means, paper_epsilon


def figures(*arguments, **settings):
    """By name: value and note."""
    return {figure.name: (figure.value, figure.note) for figure in of_means(*arguments, **settings)}


def delta_of(epsilon, ratio):
    """Balle & Wang (2018), theorem 8, for sensitivity ÷ σ."""
    tail = math.exp(epsilon + norm.logcdf(-ratio / 2 - epsilon / ratio))
    return norm.cdf(ratio / 2 - epsilon / ratio) - tail


@pytest.mark.parametrize(
    ("samples", "noise", "delta", "releases", "known"),
    [(100, 0.039, 0.01, 1, 6.2), (100, 0.039, 0.01, 10, 35), (100, 1.0, 1e-5, 1, 0.27), (100, 1.0, 1e-5, 200, 5.05)],
)
def test_epsilon_of_a_latent_vector_released_several_times(samples, noise, delta, releases, known):
    """64 dimensions in [0, 1]: √64/m for one release; the joint one of r has √r of that."""
    found = figures(64, samples, releases, noise, delta, filtered=True)
    ratio = math.sqrt(64 * releases) / samples / noise
    exact = brentq(lambda epsilon: delta_of(epsilon, ratio) - delta, 0, 200)
    assert found["epsilon_without_filter"][0] == pytest.approx(exact, rel=1e-6)
    assert found["epsilon_without_filter"][0] == pytest.approx(known, rel=0.015)
    assert found["epsilon"] == (None, "no certificate (private filter)")
    assert found["paper_epsilon"][0] == paper_epsilon(samples, noise, delta)


def test_the_papers_example_by_its_own_formula():
    """m 100, σ 3.9 (noise 0.039), δ 0.01: √(2·ln 125)/3.9 = 0.80. The paper's 0.5 takes lg 80 in place of ln 125."""
    assert paper_epsilon(100, 0.039, 0.01) == pytest.approx(math.sqrt(2 * math.log(125)) / 3.9)
    assert paper_epsilon(100, 0.039, 0.01) == pytest.approx(0.797, abs=1e-3)
    assert math.sqrt(2 * math.log10(80)) / 0.5 == pytest.approx(3.9, abs=0.01)


def test_one_release_without_a_private_filter_is_certified():
    found = figures(64, 100, 1, 1.0, 1e-5, filtered=False)
    assert found["epsilon"][0] == pytest.approx(0.27, abs=0.005)
    assert "of the means alone, given the encoder" in found["epsilon"][1]
    assert sorted(found) == ["epsilon", "paper_epsilon"]


def test_without_noise_there_is_nothing_to_certify():
    for filtered in (True, False):
        assert figures(64, 100, 1, 0.0, 1e-5, filtered=filtered) == {"epsilon": (None, "no certificate (no noise)")}


def test_where_nothing_was_shared_it_says_so():
    assert figures(64, None, 200, 1.0, 1e-5, filtered=True) == {"epsilon": (None, "nothing was shared")}
