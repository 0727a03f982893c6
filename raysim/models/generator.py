"""A generator of features (not images) of a given class, its training and its measures (FedPA, FedGen)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysim.models.flat import FlatModel
from raysim.training.optimizers import Adam, fresh_moments

HIDDEN = 256
BLOCK = 16  # local steps for which a client generates features at once: fewer, larger operations
MEASURED = 500  # features whose distances are reported, of all classes the clients had
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # of features, labels, noise: a value, or one per feature to average


class Generator(nn.Module):
    """`forward(noise, labels)`: [noise ++ one-hot label] → 256 → batch-norm → ReLU → feature, without activation."""

    def __init__(self, noise_size: int, classes: int, feature_size: int):
        super().__init__()
        self.classes = classes
        self.layers = nn.Sequential(
            nn.Linear(noise_size + classes, HIDDEN),
            nn.BatchNorm1d(HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, feature_size),
        )

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        return self.layers(torch.cat([noise, F.one_hot(labels, self.classes).to(noise.dtype)], 1))


def build_generator(noise_size: int, classes: int, feature_size: int, seed: int) -> Generator:
    """A generator on the CPU with new weights, which depend on the seed only; torch's generator is unchanged."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which would also reseed the GPUs
        return Generator(noise_size, classes, feature_size)


def for_classifier(classifier: FlatModel, noise_size: int, weights: Tensor | None = None, seed: int = 0) -> FlatModel:
    """A generator of this classifier's features, on its device, with these weights or new ones."""
    module: Any = classifier.module  # a classifier
    generator = build_generator(noise_size, module.head.out_features, module.feature_size, seed)
    model = FlatModel(generator.eval(), classifier.device)
    if weights is not None:
        model.load(weights)
    return model


def fresh_state(classifier: FlatModel, noise_size: int, seed: int) -> dict[str, object]:
    """The state of a new generator of this classifier's features at the server: its weights and Adam's moments."""
    model = for_classifier(classifier, noise_size, seed=seed)
    return {"generator": model.weights, "adam": fresh_moments(model.flat_parameter)}


@torch.no_grad()
def make(model: FlatModel, noise: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Generated features with their labels."""
    return model.module(noise, labels), labels


def draw_inputs(
    stream: np.random.Generator, counts: Tensor, size: int, noise_size: int, uniform: bool = False
) -> tuple[Tensor, Tensor]:
    """Noise, and labels in proportion to the counts; drawn on the host and moved to the counts' device at once."""
    weights = counts.double().cpu().numpy()
    labels = torch.from_numpy(stream.choice(len(weights), size, p=weights / weights.sum()))
    draw = stream.random if uniform else stream.standard_normal
    noise = torch.from_numpy(draw((size, noise_size), dtype=np.float32))
    return noise.to(counts.device), labels.to(counts.device)


def fidelity(made: Tensor, labels: Tensor, heads: Tensor, biases: Tensor, shares: Tensor) -> Tensor:
    """FedPA eq. 5: each client's head on all features, weighted by its share of the label; factor 1/(B·clients)."""
    logits = made @ heads.mT + biases[:, None]  # client × sample × class
    losses = F.cross_entropy(logits.flatten(0, 1), labels.repeat(len(heads)), reduction="none")
    return (losses.view(len(heads), -1) * shares[:, labels]).mean()


def prototype_distance(features: Tensor, labels: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """FedPA eqs. 6 and 10: each sample's L2 distance to its label's prototype; a class without one adds nothing."""
    return torch.linalg.vector_norm(features - prototypes[labels], dim=-1) * known[labels]


def diversity(made: Tensor, labels: Tensor, noise: Tensor, pairs: str = "same") -> Tensor:
    """FedPA eq. 7, over pairs with the same label; or with different ones, or over all (FedGen)."""
    same = labels[:, None] == labels
    counted = {"same": same, "different": ~same, "all": torch.ones_like(same)}[pairs]
    # Not cdist: the norm of a difference has gradient 0, not NaN, if both of a pair are the same sample.
    apart, noise_apart = (torch.linalg.vector_norm(v[:, None] - v, dim=2) for v in (made, noise))
    return (-(counted * apart * noise_apart).mean()).exp()


def class_distances(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean L2 distance of two features of the same class, and of different classes; 0 if there are no such pairs.

    FedPA's table V does not define its measure; that its two figures agree for the untrained generator suggests pairs.
    """
    apart = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")
    same = labels[:, None] == labels
    pairs = same.sum() - len(labels), (~same).sum()
    return (apart * same).sum() / pairs[0].clamp(min=1), (apart * ~same).sum() / pairs[1].clamp(min=1)


def measure(features: Tensor, labels: Tensor, prefix: str) -> dict[str, float]:
    """The distances between features (FedPA's table V) as metrics."""
    intra, inter = torch.stack(class_distances(features, labels)).tolist()
    return {f"{prefix}intra": intra, f"{prefix}inter": inter}


def train_generator(
    model: FlatModel, moments: dict[str, Tensor], settings: dict[str, Any], inputs: tuple[Tensor, Tensor],
    batch_size: int, losses: dict[str, tuple[float, Loss]],
) -> dict[str, float]:  # fmt: skip
    """Train by Adam on Σ factor·loss, a step per batch of (noise, labels), from these moments; returns mean losses."""
    optimizer = Adam([model.flat_parameter], moments=[moments], **settings)  # the moments are written in place
    batches = list(zip(*(values.split(batch_size) for values in inputs), strict=True))
    factors = torch.tensor([factor for factor, _ in losses.values()], device=model.device)
    totals = torch.zeros_like(factors)
    model.module.train()
    for noise, labels in batches if losses else ():
        made = model.module(noise, labels)
        values = torch.stack([loss(made, labels, noise).mean() for _, loss in losses.values()])
        model.gradients.zero_()
        (values * factors).sum().backward()
        optimizer.step()
        totals += values.detach()  # on the device: no transfer per step
    model.module.eval()
    means = (totals / len(batches)).tolist()
    return {f"generator.{name}": mean for name, mean in zip(losses, means, strict=True)}
