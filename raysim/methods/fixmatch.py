"""FixMatch (Sohn et al., 2020) at every client: an image changed much is to be taken for what it is, changed little."""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from raysim.methods.base import Part
from raysim.methods.common.augmentation import strong, weak
from raysim.methods.common.pseudo_labels import pseudo_labels
from raysim.settings import setting


@dataclass(frozen=True)
class FixMatch(Part):
    """FixMatch: consistency of the predictions for a client's unlabelled images (--labelled) under augmentation.

    Without --labelled, of all its images.
    """

    lambda_u: float = setting(1.0, "weight of the unlabelled images' term; 0: no augmentation either (λ_u)", minimum=0)
    threshold: float = setting(0.95, "probability above which a pseudo-label counts (τ)", minimum=0, maximum=1)
    flip: bool = setting(True, "whether weak augmentation flips images; not for digits")

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
        """λ_u times the mean, over all of the batch, of what the sure ones lose."""
        if not self.lambda_u:
            return None
        now, module = client.scratch[self.name], client.model.module
        rows = now["rows"].integers(len(now["images"]), size=client.config.unlabelled_batch)
        x = now["images"][torch.from_numpy(rows).to(client.y.device)]
        with torch.no_grad():
            top = module(weak(x, now["weak"], self.flip)).float().softmax(1).max(1)
        labels = pseudo_labels(top.indices, top.values, self.threshold)
        changed = client.scale.from_pixels(strong(client.pixels(x), now["strong"]))
        losses = F.cross_entropy(module(changed), labels, ignore_index=-1, reduction="sum")
        return self.lambda_u * losses / len(rows)
