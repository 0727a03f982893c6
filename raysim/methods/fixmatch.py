"""FixMatch (Sohn et al., 2020) at every client: predictions are to agree under weak and strong augmentation."""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from raysim.methods.base import Part
from raysim.methods.common.augmentation import strong, weak
from raysim.methods.common.pseudo_labels import UNLABELLED, pseudo_labels
from raysim.settings import setting


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
        has_some = client.unlabelled is not None and len(client.unlabelled)
        client.scratch[self.name] = {
            "images": client.unlabelled if has_some else client.x,
            "rows": client.stream(f"{self.name}/rows"),
            "labelled": client.stream(f"{self.name}/labelled"),
            "weak": client.stream(f"{self.name}/weak"),
            "strong": client.stream(f"{self.name}/strong"),
        }

    def batch(self, client, x, y):
        return (weak(x, client.scratch[self.name]["labelled"], self.flip), y) if self.lambda_u else (x, y)

    def loss(self, client, step):
        """λ_u times the cross-entropy of the images with a confident pseudo-label, divided by the size of the batch."""
        if not self.lambda_u:
            return None
        scratch, module = client.scratch[self.name], client.model.module
        rows = scratch["rows"].integers(len(scratch["images"]), size=client.config.unlabelled_batch)
        x = scratch["images"][torch.from_numpy(rows).to(client.y.device)]
        with torch.no_grad():
            top = module(weak(x, scratch["weak"], self.flip)).float().softmax(1).max(1)
        labels = pseudo_labels(top.indices, top.values, self.threshold)
        # The strong branch begins with flip and shift too, by draws of its own.
        moved = client.pixels(weak(x, scratch["strong"], self.flip))
        augmented = client.scale.from_pixels(strong(moved, scratch["strong"]))
        losses = F.cross_entropy(module(augmented), labels, ignore_index=UNLABELLED, reduction="sum")
        return self.lambda_u * losses / len(rows)
