"""What noise on shared mean vectors certifies, beside what FedDPMS's paper says it does."""

import math

from raysim.privacy.accounting import gaussian_epsilon
from raysim.privacy.figures import Figure


def paper_epsilon(samples: int, noise: float, delta: float) -> float:
    """FedDPMS, definition 2 with sensitivity 1/m: of one coordinate of one release, and only below 1 a bound at all."""
    return math.sqrt(2 * math.log(5 / (4 * delta))) / (samples * noise)


def of_means(
    latent: int, samples: int | None, releases: int, noise: float, delta: float, filtered: bool
) -> list[Figure]:
    """For noisy means of so many vectors in [0, 1]^latent, released so many times, each with fresh noise; or of none.

    Adjacency: one sample replaced, its label the same, counts public; so a mean moves by at most √latent/samples, and
    the classes and clients, which share no sample, do not add up. `filtered`: by what else depends on the sample.
    """
    if samples is None:
        return [Figure("epsilon", None, note="nothing was shared")]
    if noise == 0:
        return [Figure("epsilon", None, note="no certificate (no noise)")]
    epsilon = gaussian_epsilon(math.sqrt(latent) / samples, noise, delta, releases)
    what = f"δ {delta:g}, {releases} releases, fewest samples {samples}; of the means alone, given the encoder"
    paper = Figure("paper_epsilon", paper_epsilon(samples, noise, delta), note="the paper's, of one coordinate once")
    if filtered:
        without = Figure("epsilon_without_filter", epsilon, note=what)
        return [Figure("epsilon", None, note="no certificate (private filter)"), without, paper]
    return [Figure("epsilon", epsilon, note=what), paper]
