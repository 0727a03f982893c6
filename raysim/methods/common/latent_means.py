"""Latent means as FedDPMS shares them: computed, made noisy, filtered, decoded to images and matched to clients."""

import numpy as np
import torch
from torch import Tensor

from raysim.methods.common.features import class_sums
from raysim.models.vae import VaeClassifier


@torch.no_grad()
def abundant_means(
    module: VaeClassifier, x: Tensor, y: Tensor, classes: int, batch_size: int, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean latents of the classes with most samples (of equals the lower first), the classes and counts."""
    features = torch.cat([module.features(part) for part in x.split(batch_size)])
    sums, counts = class_sums(features, y, classes)
    most = (-counts).argsort(stable=True)[:count]
    most = most[counts[most] > 0]
    return sums[most] / counts[most, None], most, counts[most]


def noisy(mean: Tensor, deviation: Tensor | float, draw: np.random.Generator) -> Tensor:
    """Add normal noise, drawn on the host, to every element of the mean."""
    noise = torch.from_numpy(draw.standard_normal(mean.shape, dtype=np.float32))
    return mean + deviation * noise.to(mean.device)


def images(module: VaeClassifier, z: Tensor, limits: tuple[Tensor, Tensor]) -> Tensor:
    """Decode latent vectors to normalised images, between the values of black and white."""
    low, high = limits
    return low + (high - low) * module.decoder(z)


@torch.no_grad()
def frozen_images(module: VaeClassifier, z: Tensor, limits: tuple[Tensor, Tensor], batch_size: int) -> Tensor:
    """Decode latent vectors as `images` does, but in batches and without gradient."""
    return torch.cat([images(module, part, limits) for part in z.split(batch_size)])


@torch.no_grad()
def usable(
    module: VaeClassifier, means: Tensor, labels: Tensor, deviation: float, draw: np.random.Generator,
    limits: tuple[Tensor, Tensor], quota: int, tries: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return noisy copies of each mean whose images are classified as its label, and their labels.

    There are `quota` per label, or as many as were found in `tries` draws of `quota` candidates.
    """
    found = []
    for mean, label in zip(means, labels, strict=True):
        accepted = means[:0]
        for _ in range(tries):
            z = noisy(mean.expand(quota, -1), deviation, draw)
            right = module(images(module, z, limits)).argmax(1) == label
            accepted = torch.cat([accepted, z[right]])[:quota]
            if len(accepted) == quota:
                break
        found.append(accepted)
    return torch.cat(found), torch.cat([label.expand(len(z)) for label, z in zip(labels, found, strict=True)])


def match(wanted: dict[int, set[int]], offered: dict[int, set[int]]) -> dict[int, int]:
    """Return client -> the other client that offers most of the classes it wants, of equals the one with the lowest id.

    A client to which no other offers any of its classes is left out.

    >>> match({0: {7, 8, 9}, 1: {0}}, {1: {1, 7}, 3: {2, 8}, 5: {8, 9}})
    {0: 5}
    """
    matched = {}
    for client, classes in wanted.items():
        common = {j: len(classes & theirs) for j, theirs in sorted(offered.items()) if j != client}
        if any(common.values()):
            matched[client] = max(common, key=lambda j: common[j])
    return matched
