"""Computations on features: class sums and means, class activation, hard features, matching losses."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch.nn import functional as F

from raysim.training.client import Client
from raysim.training.fused import FusedStep


def class_sums(
    features: torch.Tensor, labels: torch.Tensor, classes: int, counted: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sum of features and number of samples per class, by a matrix product, deterministic on every device.

    Tensors may have the clients as first dimension; `counted` then marks the samples that are not padding.
    """
    member = _unit_vectors(classes, labels.device)[labels]
    member = member if counted is None else member * counted[..., None]
    with torch.autocast(features.device.type, enabled=False):  # sums need full precision
        return member.mT @ features.float(), member.sum(-2)


@lru_cache
def _unit_vectors(classes: int, device: torch.device) -> torch.Tensor:
    """Return the one-hot form of every class, kept since making one for a batch takes several operations."""
    return torch.eye(classes, device=device)


def fused_class_sums(step: FusedStep, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each client's sums of features and numbers of samples per class, over the real samples of a fused step."""
    features = step.features.detach()[:, : step.real_y.shape[1]]
    return class_sums(features, step.real_y, classes, step.real_share > 0)


def joined_scratch(clients: list[Client], name: str, keys: Sequence[str]) -> dict[str, torch.Tensor]:
    """Join what the clients keep under these keys in a part's scratch; each client then has its rows."""
    joined = {key: torch.stack([client.scratch[name][key] for client in clients]) for key in keys}
    for i, client in enumerate(clients):
        client.scratch[name] |= {key: values[i] for key, values in joined.items()}
    return joined


def class_means(sums: torch.Tensor, counts: torch.Tensor, before: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return prototypes from per-class sums and counts, and which classes have one; an unseen class keeps its last.

    `before` is what this returned earlier, or empty.
    """
    means, seen = sums / counts.clamp(min=1)[:, None], counts > 0
    prototypes = torch.where(seen[:, None], means, before.get("prototypes", means))
    return {"prototypes": prototypes, "known": seen | before.get("known", seen)}


def class_activation(
    logits: Callable[[torch.Tensor], torch.Tensor], features: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Return the class activation ∂q^y/∂z (eq. 8), where `logits` is q as a function of z; row y of a linear head."""
    features = features.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(logits(features).gather(1, labels[:, None]).sum(), [features])
    return gradient


def hard_features(features: torch.Tensor, prototypes: torch.Tensor | None, mu: float) -> torch.Tensor:
    """Shift features away from their class's prototype for μ > 0, towards it for μ < 0 (eq. 10)."""
    return features if prototypes is None or mu == 0 else (1 + mu) * features - mu * prototypes


def matching_loss(made: torch.Tensor, real: torch.Tensor, how: str, temperature: float) -> torch.Tensor:
    """Return the distance of each synthetic image's masked features from those to match (eqs. 9 and 11)."""
    if how == "mse":
        return (made - real).square().mean(1)
    if how == "relative":
        return (made - real).square().sum(1) / real.square().sum(1).clamp(min=1e-12)
    if how == "kl-sum":
        made, real = (z.clamp(min=0) + 1e-8 for z in (made, real))
        log_made, log_real = ((z / z.sum(1, keepdim=True)).log() for z in (made, real))
    else:
        log_made, log_real = (F.log_softmax(z / temperature, 1) for z in (made, real))
    if how == "kl-reverse":
        log_made, log_real = log_real, log_made
    return (log_made.exp() * (log_made - log_real)).sum(1)
