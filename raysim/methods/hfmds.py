"""HFMDS-FL (arXiv 2308.04761): clients share synthetic images with the class-relevant features of real ones."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from raysim.data.synthetic_tables import extended, gathered
from raysim.methods.base import Upload
from raysim.methods.common.features import (
    class_activation,
    class_sums,
    fused_class_sums,
    hard_features,
    joined_scratch,
    matching_loss,
    optimise_images,
)
from raysim.methods.common.mixed_training import MixedTraining
from raysim.privacy.psnr import psnr
from raysim.settings import setting
from raysim.training.client import Client


@dataclass(frozen=True)
class HFMDS(MixedTraining):
    """HFMDS-FL: training on shared synthetic images, made by hard feature matching."""

    alpha: float = setting(
        0.5,
        "weight of the loss on real images; synthetic ones have 1 − α (α, eq. 6; 0.1 in the paper)",
        minimum=0,
        maximum=1,
    )
    mu: float = setting(
        0.5, "shift of the target features away from their prototype; 0: FMDS, below 0: easy (μ, eq. 10)"
    )
    momentum: float = setting(0.5, "momentum of the local prototypes (λ)", minimum=0, maximum=1)
    every: int = setting(20, "rounds between two syntheses (T_d)", minimum=1)
    steps: int = setting(500, "optimisation steps per synthesis (T_g)", minimum=0)
    per_client: int = setting(100, "synthetic images per client, at most its number of samples (B_g)", minimum=1)
    lr: float = setting(0.02, "learning rate of Adam on the images", above=0)
    match: Literal["kl", "kl-reverse", "kl-sum", "mse", "none"] = setting(
        "kl", "loss between synthetic and real features; kl in the paper"
    )
    match_weight: float = setting(1.0, "factor on the matching loss", minimum=0)
    temperature: float = setting(1.0, "temperature of the softmax in the matching loss", above=0)
    cam: Literal["relu", "raw"] = setting(
        "relu", "positive part of the class activation map, or all of it as in eq. 11"
    )
    tolerance: float = setting(0.0, "stop a synthesis once ten steps lower its loss by less than this share", minimum=0)
    clamp: bool = setting(False, "keep synthetic pixels in the range of real ones")
    accumulate: bool = setting(False, "keep the images of earlier syntheses in the shared dataset")
    # On two CPU cores batches of 100 to 200 images are fastest (1,450 images·steps/s), 1,000 a third slower.
    group: int = setting(
        2, "clients whose images are synthesised in one batch; changes the last bits of the result", minimum=1
    )

    def idle(self, config, sizes):
        if config.rounds < self.every:
            return f"it synthesises every {self.every} rounds, and there are {config.rounds}; lower --{self.name}.every"

    # -- synthesis, at the start of every T_d-th round, at all clients ------------------------------------------------

    def exchange(self, server, t, i):
        return "all" if t % self.every == 0 and i == 0 else None

    def reply(self, clients):
        rows = [np.sort(c.stream(f"{self.name}/rows").permutation(c.samples)[: self.per_client]) for c in clients]
        real = torch.cat([c.x[r] for c, r in zip(clients, rows, strict=True)])
        labels = torch.cat([c.y[r] for c, r in zip(clients, rows, strict=True)])
        prototypes = torch.cat([self.prototypes(c)[c.y[r]] for c, r in zip(clients, rows, strict=True)])
        noise = [
            c.stream(f"{self.name}/noise").standard_normal((len(r), *c.x.shape[1:]), dtype=np.float32)
            for c, r in zip(clients, rows, strict=True)
        ]
        images = self.synthesise(clients[0], real, labels, prototypes, torch.from_numpy(np.concatenate(noise)))
        similar = psnr(clients[0].pixels(images), clients[0].pixels(real))
        sizes = [len(r) for r in rows]
        pieces = zip(images.split(sizes), labels.split(sizes), similar.split(sizes), strict=True)
        return [Upload(rows={"images": x, "labels": y}, metadata={"psnr": p}) for x, y, p in pieces]

    def synthesise(self, client: Client, real: Tensor, labels: Tensor, prototypes: Tensor, noise: Tensor) -> Tensor:
        """The images after T_g steps of Adam on eq. 12, whose sum over the images lets each evolve by itself."""
        module = client.model.module.requires_grad_(False)
        with torch.no_grad():
            target = hard_features(module.features(real), prototypes, self.mu)
            mask = class_activation(module.head, labels)
            mask = mask.clamp(min=0) if self.cam == "relu" else mask

        def objective(images: Tensor) -> Tensor:
            features = module.features(images)
            loss = F.cross_entropy(module.head(features), labels, reduction="sum")
            if self.match != "none" and self.match_weight:
                matching = matching_loss(features * mask, target * mask, self.match, self.temperature)
                loss = loss + self.match_weight * matching.sum()
            return loss

        limits = client.pixel_range() if self.clamp else None
        images = optimise_images(noise.to(real.device), objective, self.steps, self.lr, limits, self.tolerance)
        module.requires_grad_(True)
        return images

    @torch.no_grad()
    def prototypes(self, client: Client) -> Tensor:
        """The prototypes in the client's state; for a class without one, the global model's mean (not stored)."""
        state = client.state[self.name]
        if state and bool(state["known"][client.y].all()):
            return state["prototypes"]
        sums, counts = class_sums(client.model.module.features(client.x), client.y, client.classes)
        fresh = sums / counts.clamp(min=1)[:, None]
        return torch.where(state["known"][:, None], state["prototypes"], fresh) if state else fresh

    def receive(self, server, replies):
        if not replies.each:
            return  # every client was skipped
        before = server.shared.get(self.name) if self.accumulate else None
        server.share(self.name, extended(before, gathered(replies.each, server.t)))
        similar = np.concatenate([each["psnr"] for _, each in replies.each])
        server.metrics["psnr"] = server.metrics[f"{self.name}.psnr"] = float(similar.mean(dtype=np.float64))

    # -- local training ---------------------------------------------------------------------------------------------

    def begin(self, client):
        super().begin(client)
        client.scratch[self.name] |= {
            "sums": torch.zeros(client.classes, client.model.module.feature_size, device=client.y.device),
            "counts": torch.zeros(client.classes, device=client.y.device),
        }

    def loss(self, client, step):
        scratch = client.scratch[self.name]
        sums, counts = class_sums(step.features.detach()[: len(step.real_y)], step.real_y, client.classes)
        scratch["sums"] += sums
        scratch["counts"] += counts
        return super().loss(client, step)

    def begin_fused(self, clients, stack):
        super().begin_fused(clients, stack)
        stack.scratch[self.name] |= joined_scratch(clients, self.name, ("sums", "counts"))

    def fused_loss(self, clients, step):
        sums, counts = fused_class_sums(step, clients[0].classes)
        step.model.scratch[self.name]["sums"][: len(clients)] += sums
        step.model.scratch[self.name]["counts"][: len(clients)] += counts
        return super().fused_loss(clients, step)

    def end(self, client):
        """Set the prototypes z̄_c ← (1 − λ) z_c + λ z̄_c of the classes seen in this round; z_c the first time."""
        scratch, state = client.scratch[self.name], client.state[self.name]
        seen = scratch["counts"] > 0
        means = scratch["sums"] / scratch["counts"].clamp(min=1)[:, None]
        if state:
            known, before = state["known"], state["prototypes"]
            moved = torch.where(known[:, None], (1 - self.momentum) * means + self.momentum * before, means)
            means, seen = torch.where(seen[:, None], moved, before), seen | known
        client.state[self.name] = {"prototypes": means, "known": seen}
