"""FixMatch (Sohn et al., 2020) at every client: predictions are to agree under weak and strong augmentation."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from raysim.methods.base import Part
from raysim.methods.common.augmentation import augmented, draw_strong, draw_weak, shifted
from raysim.methods.common.pseudo_labels import UNLABELLED, pseudo_labels
from raysim.settings import setting
from raysim.tensors import upload_all

if TYPE_CHECKING:
    from raysim.training.client import Client

BLOCK = 16  # local steps whose images are augmented at once: fewer, larger operations


@dataclass(frozen=True)
class FixMatch(Part):
    """FixMatch: predictions for unlabelled images (--labelled) that agree under weak and strong augmentation.

    Without --labelled, all images of the client serve as the unlabelled ones.
    """

    lambda_u: float = setting(
        1.0, "weight of the loss on unlabelled images; 0: no augmentation either (λ_u)", minimum=0
    )
    threshold: float = setting(0.95, "probability above which a pseudo-label is used (τ)", minimum=0, maximum=1)
    flip: bool = setting(True, "flip images in both augmentations; give false for digits")

    def begin(self, client):
        if not self.lambda_u:
            return
        labelled = draw_weak(client.largest_batches, client.x, client.stream(f"{self.name}/labelled"), self.flip)
        client.scratch[self.name] = {"labelled": iter(labelled), "unlabelled": self.augmented(client)}

    def augmented(self, client: "Client") -> Iterator[tuple[Tensor, Tensor]]:
        """Yield weakly and strongly augmented batches of unlabelled images, drawn now and augmented block by block."""
        images, size = client.x, client.config.unlabelled_batch
        if client.unlabelled is not None and len(client.unlabelled):
            images = client.unlabelled
        draws = {name: client.stream(f"{self.name}/{name}") for name in ("rows", "weak", "strong")}
        counts = [min(BLOCK, client.steps - first) for first in range(0, client.steps, BLOCK)]
        rows = [np.concatenate([draws["rows"].integers(len(images), size=size) for _ in range(n)]) for n in counts]
        shifts = draw_weak([size] * client.steps, images, draws["weak"], self.flip)
        # The strong branch begins with flip and shift too, by draws of its own.
        changes = draw_strong([[size] * n for n in counts], images, draws["strong"], self.flip)
        return self._blocks(client, images, upload_all(rows, images.device), shifts, changes)

    def _blocks(self, client: "Client", images: Tensor, *drawn: Any) -> Iterator[tuple[Tensor, Tensor]]:
        all_rows, shifts, changes = drawn
        size = client.config.unlabelled_batch
        for block, (rows, change) in enumerate(zip(all_rows, changes, strict=True)):
            x, first = images[rows], block * BLOCK
            at = zip(*shifts[first : first + len(rows) // size], strict=True)
            weak = shifted(x, *map(torch.cat, at))
            strong = client.scale.from_pixels(augmented(client.pixels(x), change))
            yield from zip(weak.split(size), strong.split(size), strict=True)

    def batch(self, client, x, y):
        if not self.lambda_u:
            return x, y
        rows, columns = next(client.scratch[self.name]["labelled"])
        return shifted(x, rows[: len(x)], columns[: len(x)]), y

    def extra(self, client):
        if not self.lambda_u:
            return None
        client.scratch[self.name]["weak"], strong = next(client.scratch[self.name]["unlabelled"])
        return strong

    def loss(self, client, step):
        """Return λ_u times the cross-entropy of images with a confident pseudo-label, over the size of the batch."""
        if not self.lambda_u:
            return None
        with torch.no_grad():
            top = client.model.module(client.scratch[self.name]["weak"]).float().softmax(1).max(1)
        labels = pseudo_labels(top.indices, top.values, self.threshold)
        losses = F.cross_entropy(step.extra[self.name], labels, ignore_index=UNLABELLED, reduction="sum")
        return self.lambda_u * losses / len(labels)
