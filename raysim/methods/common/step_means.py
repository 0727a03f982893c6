"""Class means that a client collects over its local steps, from the model as it is at each step (FedPA's code).

They live in the part's scratch: `start` in `begin`, `add` or `fused_add` in the loss, `means` in `end`.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from raysim.methods.common.features import class_sums, fused_class_sums

if TYPE_CHECKING:
    from raysim.training.client import Client, Step
    from raysim.training.fused import FusedStep

Scratch = dict[str, Any]


def start(scratch: Scratch, client: "Client", width: int) -> None:
    """Begin with nothing, for vectors of this width; with a width of 0 samples are only counted."""
    scratch["sums"] = torch.zeros(client.classes, width, device=client.y.device)
    scratch["seen"] = torch.zeros(client.classes, device=client.y.device)


def add(scratch: Scratch, step: "Step", vectors: Tensor) -> None:
    """Add the vectors of a step's real samples to the sums of their classes."""
    vectors = vectors.detach()[: len(step.real_y), : scratch["sums"].shape[1]]
    sums, seen = class_sums(vectors, step.real_y, len(scratch["seen"]))
    scratch["sums"] += sums
    scratch["seen"] += seen


def fused_add(scratches: list[Scratch], step: "FusedStep", vectors: Tensor) -> None:
    """Add the vectors of a fused step's real samples to the sums of each client's classes."""
    classes, width = scratches[0]["sums"].shape
    each = fused_class_sums(replace(step, features=vectors[..., :width]), classes)
    for scratch, sums, seen in zip(scratches, *each, strict=True):
        scratch["sums"] += sums
        scratch["seen"] += seen


def means(scratch: Scratch) -> Tensor:
    """Return the mean of every class; 0 for a class that no step has sampled."""
    return scratch["sums"] / scratch["seen"].clamp(min=1)[:, None]


def label_counts(client: "Client") -> Tensor:
    """Return how many samples of every class the client owns, sampled or not."""
    return F.one_hot(client.y[: client.samples], client.classes).sum(0)
