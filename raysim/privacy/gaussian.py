"""What noise on shared mean vectors certifies, beside what FedDPMS's paper says it does."""

import math

from raysim.privacy.accounting import gaussian_epsilon


def paper_epsilon(samples: int, noise: float, delta: float) -> float:
    """FedDPMS, definition 2 with sensitivity 1/m: of one coordinate of one release, and only below 1 a bound at all."""
    return math.sqrt(2 * math.log(5 / (4 * delta))) / (samples * noise)


def means_figures(latent: int, samples: int, releases: int, noise: float, delta: float, filtered: bool) -> dict:
    """For noisy means of so many vectors in [0, 1]^latent, released so many times, each with fresh noise.

    Adjacency: one sample replaced, its label the same, counts public; so a mean moves by at most √latent/samples, and
    the classes and clients, which share no sample, do not add up. The encoder is taken as given.
    """
    told = {"delta": delta, "samples": samples, "releases": releases}
    if noise == 0:
        return told | {"certificate": "no certificate (no noise)", "epsilon": None, "paper_epsilon": None}
    epsilon = round(gaussian_epsilon(math.sqrt(latent) / samples, noise, delta, releases), 4)
    told |= {"paper_epsilon": round(paper_epsilon(samples, noise, delta), 4)}
    if filtered:
        return told | {
            "certificate": "no certificate (private filter)", "epsilon": None, "epsilon_without_filter": epsilon
        }  # fmt: skip
    return told | {"certificate": "of the means alone, given the encoder", "epsilon": epsilon}
