"""Computations on features: class sums and means, class activation, hard features, matching losses, synthesis."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch.nn import functional as F

from raysim.training.client import Client
from raysim.training.fused import FusedStep
from raysim.training.optimizers import Adam


def class_sums(
    features: torch.Tensor, labels: torch.Tensor, classes: int, counted: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum of features and number of samples per class, by a matrix product, which is deterministic on every device.

    Tensors may have the clients as first dimension; `counted` then marks the samples that are not padding.
    """
    member = _unit_vectors(classes, labels.device)[labels]
    member = member if counted is None else member * counted[..., None]
    with torch.autocast(features.device.type, enabled=False):  # sums need full precision
        return member.mT @ features.float(), member.sum(-2)


@lru_cache
def _unit_vectors(classes: int, device: torch.device) -> torch.Tensor:
    """The one-hot form of every class; kept, since to make one of a batch takes several operations."""
    return torch.eye(classes, device=device)


def fused_class_sums(step: FusedStep, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Each client's sums of features and numbers of samples per class, over the real samples of a fused step."""
    features = step.features.detach()[:, : step.real_y.shape[1]]
    return class_sums(features, step.real_y, classes, step.real_share > 0)


def joined_scratch(clients: list[Client], name: str, keys: Sequence[str]) -> dict[str, torch.Tensor]:
    """What the clients keep under these keys in a part's scratch, as one tensor each, of which they then have rows."""
    joined = {key: torch.stack([client.scratch[name][key] for client in clients]) for key in keys}
    for i, client in enumerate(clients):
        client.scratch[name] |= {key: values[i] for key, values in joined.items()}
    return joined


def class_means(sums: torch.Tensor, counts: torch.Tensor, before: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Prototypes from per-class sums and counts, and which classes have one; an unseen class keeps its last.

    `before` is what this returned earlier, or empty.
    """
    means, seen = sums / counts.clamp(min=1)[:, None], counts > 0
    prototypes = torch.where(seen[:, None], means, before.get("prototypes", means))
    return {"prototypes": prototypes, "known": seen | before.get("known", seen)}


def class_activation(head: torch.nn.Linear, labels: torch.Tensor) -> torch.Tensor:
    """The class activation ∂q^y/∂z (eq. 8); since the head is linear, this is its row y for any z."""
    return head.weight.detach()[labels]


def hard_features(features: torch.Tensor, prototypes: torch.Tensor, mu: float) -> torch.Tensor:
    """Features shifted away from their class's prototype for μ > 0, towards it for μ < 0 (eq. 10)."""
    return (1 + mu) * features - mu * prototypes


def matching_loss(made: torch.Tensor, real: torch.Tensor, how: str, temperature: float) -> torch.Tensor:
    """The distance of each synthetic image's masked features from those to match (eqs. 9 and 11)."""
    if how == "mse":
        return (made - real).square().mean(1)
    if how == "kl-sum":
        made, real = (z.clamp(min=0) + 1e-8 for z in (made, real))
        log_made, log_real = ((z / z.sum(1, keepdim=True)).log() for z in (made, real))
    else:
        log_made, log_real = (F.log_softmax(z / temperature, 1) for z in (made, real))
    if how == "kl-reverse":
        log_made, log_real = log_real, log_made
    return (log_made.exp() * (log_made - log_real)).sum(1)


def optimise_images(
    start: torch.Tensor, objective: Callable[[torch.Tensor], torch.Tensor], steps: int, lr: float,
    limits: tuple[torch.Tensor, torch.Tensor] | None = None, tolerance: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    """The images after Adam on their pixels has lowered the objective.

    The objective is a sum over the images, and Adam is element-wise: each image evolves by itself. With `tolerance`, it
    stops once ten steps lower the objective by less than that share.
    """
    images = start.clone(memory_format=torch.channels_last).requires_grad_()
    optimizer = Adam([images], lr=lr)
    before = float("inf")
    for step in range(steps):
        loss = objective(images)
        if tolerance and step % 10 == 0:  # a transfer to the host, so only with a tolerance
            value = loss.item()
            if before - value < tolerance * before:
                break
            before = value
        (images.grad,) = torch.autograd.grad(loss, [images])
        optimizer.step()
        if limits is not None:
            with torch.no_grad():
                images.clamp_(*limits)
    return images.detach()
