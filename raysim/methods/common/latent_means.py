"""Latent means as FedDPMS shares them: whose, with noise, which are usable, as images, for whom."""

import numpy as np
import torch
from torch import Tensor

from raysim.methods.common.features import class_sums
from raysim.models.vae import VaeClassifier


@torch.no_grad()
def abundant_means(
    module: VaeClassifier, x: Tensor, y: Tensor, classes: int, batch_size: int, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean latents of the classes with most samples (the lower of equals first), those classes, their samples."""
    features = torch.cat([module.features(part) for part in x.split(batch_size)])
    sums, counts = class_sums(features, y, classes)
    most = (-counts).argsort(stable=True)[:count]
    most = most[counts[most] > 0]
    return sums[most] / counts[most, None], most, counts[most]


def noisy(mean: Tensor, deviation: Tensor | float, draw: np.random.Generator) -> Tensor:
    """Normal noise, drawn on the host, added to every element."""
    noise = torch.from_numpy(draw.standard_normal(mean.shape, dtype=np.float32))
    return mean + deviation * noise.to(mean.device)


def images(module: VaeClassifier, z: Tensor, limits: tuple[Tensor, Tensor]) -> Tensor:
    """Decoded to normalised images, between the values of black and white."""
    low, high = limits
    return low + (high - low) * module.decoder(z)


@torch.no_grad()
def frozen_images(module: VaeClassifier, z: Tensor, limits: tuple[Tensor, Tensor], batch_size: int) -> Tensor:
    """The same in batches, without gradient."""
    return torch.cat([images(module, part, limits) for part in z.split(batch_size)])


@torch.no_grad()
def usable(
    module: VaeClassifier, means: Tensor, labels: Tensor, deviation: float, draw: np.random.Generator,
    limits: tuple[Tensor, Tensor], quota: int, tries: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """For every label, noisy copies of its mean whose image is classified as it: `quota`, or what the tries gave."""
    found = []
    for mean, label in zip(means, labels, strict=True):
        kept = means[:0]
        for _ in range(tries):
            z = noisy(mean.expand(quota, -1), deviation, draw)
            right = module(images(module, z, limits)).argmax(1) == label
            kept = torch.cat([kept, z[right]])[:quota]
            if len(kept) == quota:
                break
        found.append(kept)
    return torch.cat(found), torch.cat([label.expand(len(kept)) for label, kept in zip(labels, found, strict=True)])


def match(wanted: dict[int, set[int]], offered: dict[int, set[int]]) -> dict[int, int]:
    """Client -> the other client that offers most of the classes it wants, of equals the lowest id; or nobody.

    >>> match({0: {7, 8, 9}, 1: {0}}, {1: {1, 7}, 3: {2, 8}, 5: {8, 9}})
    {0: 5}
    """
    matched = {}
    for client, classes in wanted.items():
        common = {j: len(classes & theirs) for j, theirs in sorted(offered.items()) if j != client}
        if any(common.values()):
            matched[client] = max(common, key=lambda j: common[j])
    return matched
