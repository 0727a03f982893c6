"""Pseudo-labels for images without labels, and mixtures of samples."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

UNLABELLED = -1  # in place of a label


@torch.no_grad()
def predictions(module: torch.nn.Module, x: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Return the most likely class of each image and its probability, by a module in evaluation mode."""
    logits = [module(part) for part in x.split(batch)]
    top = torch.cat(logits).softmax(1).max(1)
    return top.indices, top.values


def pseudo_labels(labels: Tensor, confidence: Tensor, threshold: float) -> Tensor:
    """Return the labels whose probability is above the threshold, and -1 in place of the others.

    >>> pseudo_labels(torch.tensor([3, 1, 2]), torch.tensor([0.96, 0.95, 0.2]), 0.95).tolist()
    [3, -1, -1]
    """
    return torch.where(confidence.double() > threshold, labels, UNLABELLED)


def soft(labels: Tensor, classes: int) -> Tensor:
    """Return labels as probabilities [samples, classes]; soft labels as they are."""
    return F.one_hot(labels.long(), classes).float() if labels.ndim == 1 else labels


def mixed(
    first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], share: float, classes: int
) -> tuple[Tensor, Tensor]:
    """Mix two batches, images and labels: share·first + (1 − share)·second.

    >>> x, y = mixed((torch.ones(1), torch.tensor([0])), (torch.zeros(1), torch.tensor([1])), 0.25, 2)
    >>> x.tolist(), y.tolist()
    ([0.25], [[0.25, 0.75]])
    """
    (x, y), (other_x, other_y) = first, second
    return share * x + (1 - share) * other_x, share * soft(y, classes) + (1 - share) * soft(other_y, classes)


def draw_rows(rows: np.ndarray, draw: np.random.Generator, count: int) -> np.ndarray:
    """Draw `count` of these rows at random with replacement."""
    return rows[draw.integers(len(rows), size=count)]
