"""The certified ε of noisy mean vectors that are shared, and the ε by FedDPMS's paper beside it."""

import math

from raysim.privacy.accounting import gaussian_epsilon
from raysim.privacy.figures import Figure


def paper_epsilon(samples: int, noise: float, delta: float) -> float:
    """Return the ε of FedDPMS's definition 2 with sensitivity 1/m.

    It is about one coordinate of one release, and is a bound only below 1.
    """
    return math.sqrt(2 * math.log(5 / (4 * delta))) / (samples * noise)


def of_means(
    latent: int, samples: int | None, releases: int, noise: float, delta: float, filtered: bool
) -> list[Figure]:
    """Return the ε figures of noisy means of `samples` vectors in [0, 1]^latent, released repeatedly with fresh noise.

    Adjacency: one sample replaced, its label the same, counts public; so a mean moves by at most √latent/samples, and
    the classes and clients, which have no sample in common, do not add up. `samples` is None if nothing was shared.
    `filtered`: the releases were selected by something else that depends on the samples, so nothing is certified.
    """
    if samples is None:
        return [Figure("epsilon", None, note="nothing was shared")]
    if noise == 0:
        return [Figure("epsilon", None, note="no certificate (no noise)")]
    epsilon = gaussian_epsilon(math.sqrt(latent) / samples, noise, delta, releases)
    what = f"δ {delta:g}, {releases} releases, fewest samples {samples}; of the means alone, given the encoder"
    paper = Figure(
        "paper_epsilon",
        paper_epsilon(samples, noise, delta),
        note="by the paper's definition 2: of one coordinate of one release",
    )
    if filtered:
        without = Figure("epsilon_without_filter", epsilon, note=what)
        return [Figure("epsilon", None, note="no certificate (private filter)"), without, paper]
    return [Figure("epsilon", epsilon, note=what), paper]
