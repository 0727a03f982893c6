"""The feature generator of FedPA and FedGen: a network from noise and a class to a feature, never to an image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysim.models.flat import FlatModel

HIDDEN = 256  # units of the hidden layer, where nothing else is said


class Generator(nn.Module):
    """The generator: [noise ++ one-hot label] → hidden layer → batch-norm → ReLU → feature, without activation."""

    def __init__(self, noise_size: int, classes: int, feature_size: int, hidden: int = HIDDEN):
        super().__init__()
        self.classes = classes
        self.layers = nn.Sequential(
            nn.Linear(noise_size + classes, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, feature_size),
        )

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        return self.layers(torch.cat([noise, F.one_hot(labels, self.classes).to(noise.dtype)], 1))


def build_generator(noise_size: int, classes: int, feature_size: int, seed: int, hidden: int = HIDDEN) -> Generator:
    """Return a generator on the CPU whose weights depend on the seed only; torch's generator is unchanged."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which would also reseed the GPUs
        return Generator(noise_size, classes, feature_size, hidden)


def for_classifier(
    classifier: FlatModel, noise_size: int, hidden: int, weights: Tensor | None = None, seed: int = 0
) -> FlatModel:
    """Return a generator of this classifier's features, on its device, with these weights or new ones."""
    module: Any = classifier.module
    generator = build_generator(noise_size, module.head.out_features, module.feature_size, seed, hidden)
    model = FlatModel(generator.eval(), classifier.device)
    if weights is not None:
        model.load(weights)
    return model
