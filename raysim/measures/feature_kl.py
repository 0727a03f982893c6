"""The KL divergence of a class's features between clients: how differently the active clients' models see the class.

HFMDS-FL's propositions 1 and 2 say that sharing synthetic images lowers it. Features of the same held-out images of a
class, by the models of two clients after their local training, are taken for Gaussian with independent coordinates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

    from raysim.data.federated import FederatedData

NAME = "feature_kl"  # of the metric, and of the statistics on their way to the server
FEWEST = 2  # images of a class that a variance can be estimated from
FLOOR = 0.01  # added to every variance, as a share of the mean one: features may be constant (ReLU)


def held_out_images(data: FederatedData, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first test images of each class with their labels: about `count` of all classes together.

    Classes with too few test images are left out.
    """
    from raysim.privacy.attacks import Rows

    rows = Rows.of(data.test, range(len(data.test)))
    each = max(FEWEST, count // data.classes)
    found = [np.flatnonzero(rows.labels == label)[:each] for label in range(data.classes)]
    chosen = np.concatenate([np.empty(0, np.int64), *(places for places in found if len(places) >= FEWEST)])
    return rows.images(chosen), rows.labels[chosen]


def class_moments(features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the mean and the variance of every feature in every class present, in order of the classes."""
    import torch

    groups = [features[labels == label].flatten(1).double() for label in labels.unique()]
    return {
        "means": torch.stack([group.mean(0) for group in groups]),
        "variances": torch.stack([group.var(0) for group in groups]),
    }


def mean_kl(clients: list[dict[str, Any]]) -> float | None:
    """Return the mean KL divergence over classes and ordered pairs of clients, in nats; None without a pair.

    The logarithms of KL(k‖k′) = ½ Σ (ln v′/v + (v + (m − m′)²)/v′ − 1) cancel over all pairs, and the sum over k needs
    only Σ v, Σ m and Σ m²: the cost is linear in the number of clients.
    """
    count = len(clients)
    if count < 2:
        return None
    means = np.stack([each["means"] for each in clients])  # [clients, classes, features]
    variances = np.stack([each["variances"] for each in clients])
    variances = variances + FLOOR * variances.mean() + np.finfo(np.float64).tiny
    means = means - means.mean(0)  # which changes no difference, and keeps the squares small
    total = variances.sum(0) + (means**2).sum(0) - 2 * means * means.sum(0) + count * means**2
    ratios = (total / variances).sum() - count * count * variances[0].size  # pairs of a client with itself add 0
    return float(0.5 * ratios / (count * (count - 1) * variances.shape[1]))
