"""A generator of features: its training and metrics at the server, and its use by clients (FedPA, FedGen)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from raysim.models.flat import FlatModel
from raysim.training.optimizers import Adam, fresh_moments

BLOCK = 16  # local steps for which a client generates features at once: fewer, larger operations
MEASURED = 500  # generated features whose distances are reported, of all classes that clients have
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # (features, labels, noise) -> a value, or one per feature to average


def fresh_state(model: FlatModel) -> dict[str, object]:
    """Return the server's state for a new generator: its weights and Adam's moments."""
    return {"generator": model.weights, "adam": fresh_moments(model.flat_parameter)}


@torch.no_grad()
def make(model: FlatModel, noise: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Generate features from noise and labels, and return them with the labels."""
    return model.module(noise, labels), labels


def in_blocks(model: FlatModel, noise: Tensor, labels: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of features and labels, generated for several local steps at once."""
    for block in zip(noise.split(BLOCK * size), labels.split(BLOCK * size), strict=True):
        yield from zip(*(values.split(size) for values in make(model, *block)), strict=True)


def draw_inputs(
    stream: np.random.Generator, counts: Tensor, size: int, noise_size: int, uniform: bool = False
) -> tuple[Tensor, Tensor]:
    """Draw noise, and labels in proportion to the counts, on the host, and move them to the counts' device at once."""
    weights = counts.double().cpu().numpy()
    labels = torch.from_numpy(stream.choice(len(weights), size, p=weights / weights.sum()))
    draw = stream.random if uniform else stream.standard_normal
    noise = torch.from_numpy(draw((size, noise_size), dtype=np.float32))
    return noise.to(counts.device), labels.to(counts.device)


def fidelity(made: Tensor, labels: Tensor, heads: Tensor, biases: Tensor, shares: Tensor) -> Tensor:
    """Return FedPA's eq. 5: cross-entropies of all heads, weighted by the client's share of the label.

    The mean is over B·clients.
    """
    logits = made @ heads.mT + biases[:, None]  # client × sample × class
    losses = F.cross_entropy(logits.flatten(0, 1), labels.repeat(len(heads)), reduction="none")
    return (losses.view(len(heads), -1) * shares[:, labels]).mean()


def prototype_distance(features: Tensor, labels: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Return FedPA's eqs. 6 and 10: each sample's L2 distance to its label's prototype; 0 for a class without one."""
    return torch.linalg.vector_norm(features - prototypes[labels], dim=-1) * known[labels]


def nearest_prototype(distance: Callable[..., Tensor], prototypes: Tensor, known: Tensor) -> Tensor:
    """Return the distance of each class's prototype to the nearest other one; infinite where there is no other."""
    classes = torch.arange(len(known), device=known.device)
    apart = torch.stack([distance(prototypes, y.expand(len(known)), prototypes, known) for y in classes])
    return apart.masked_fill((classes[:, None] == classes) | ~known, torch.inf).amin(1)


def counted_pairs(labels: Tensor, pairs: str) -> Tensor:
    """Return which pairs of samples count: those with the `same` label, with `different` ones, or `all` (FedGen)."""
    same = labels[:, None] == labels
    return {"same": same, "different": ~same, "all": torch.ones_like(same)}[pairs]


def diversity(made: Tensor, labels: Tensor, noise: Tensor, pairs: str = "same") -> Tensor:
    """Return the diversity loss of FedPA's eq. 7, over the pairs that count; its mean is over all pairs."""
    counted = counted_pairs(labels, pairs)
    # Differences are written out: their norm has gradient 0, not NaN, where a sample is paired with itself.
    apart, noise_apart = (torch.linalg.vector_norm(v[:, None] - v, dim=2) for v in (made, noise))
    return (-(counted * apart * noise_apart).mean()).exp()


def class_distances(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean L2 distance of two features of one class, and of different classes; 0 without such pairs."""
    apart = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")
    same = labels[:, None] == labels
    pairs = same.sum() - len(labels), (~same).sum()
    return (apart * same).sum() / pairs[0].clamp(min=1), (apart * ~same).sum() / pairs[1].clamp(min=1)


def measure(features: Tensor, labels: Tensor, prefix: str) -> dict[str, float]:
    """Return the distances of features within and between classes, as metrics."""
    intra, inter = torch.stack(class_distances(features, labels)).tolist()
    return {f"{prefix}intra": intra, f"{prefix}inter": inter}


def train_generator(
    model: FlatModel, moments: dict[str, Tensor], settings: dict[str, float], inputs: tuple[Tensor, Tensor],
    batch_size: int, losses: dict[str, tuple[float, Loss]],
) -> dict[str, float]:  # fmt: skip
    """Train the generator by Adam on Σ factor·loss, one step per batch of (noise, labels); returns the mean losses.

    The training continues from the moments, which are changed in place.
    """
    optimizer = Adam(
        [model.flat_parameter],
        lr=settings["lr"],
        weight_decay=settings["weight_decay"],
        moments=[moments],
    )
    batches = list(zip(*(values.split(batch_size) for values in inputs), strict=True))
    factors = torch.tensor([factor for factor, _ in losses.values()], device=model.device)
    totals = torch.zeros_like(factors)
    model.module.train()
    for noise, labels in batches if losses else ():
        features = model.module(noise, labels)
        values = torch.stack([loss(features, labels, noise).mean() for _, loss in losses.values()])
        model.gradients.zero_()
        (values * factors).sum().backward()
        optimizer.step()
        totals += values.detach()  # on the device: no transfer per step
    model.module.eval()
    means = (totals / len(batches)).tolist()
    return {f"generator.{name}": mean for name, mean in zip(losses, means, strict=True)}
