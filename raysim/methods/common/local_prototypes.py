"""Prototypes that each client keeps: running means of the features of its classes over its local steps (HFMDS-FL)."""

from typing import Any

import torch

from raysim.methods.common.features import class_sums, fused_class_sums, joined_scratch
from raysim.methods.common.mixed_training import MixedTraining
from raysim.training.client import Client, Step
from raysim.training.fused import FusedStep, Stack


class LocalPrototypes(MixedTraining):
    """A part whose clients keep `prototypes` [classes] in their state, and which of them are `known`."""

    momentum: float  # a setting of the subclass

    def keeps_prototypes(self, module: Any) -> bool:
        """Whether the part needs prototypes, of this classifier."""
        return True

    def begin(self, client: Client) -> None:
        super().begin(client)
        if self.keeps_prototypes(client.model.module):
            client.scratch[self.name] |= {
                "sums": torch.zeros(client.classes, client.model.module.feature_size, device=client.y.device),
                "counts": torch.zeros(client.classes, device=client.y.device),
            }

    def begin_fused(self, clients: list[Client], stack: Stack) -> None:
        super().begin_fused(clients, stack)
        if self.keeps_prototypes(clients[0].model.module):
            stack.scratch[self.name] |= joined_scratch(clients, self.name, ("sums", "counts"))

    def loss(self, client: Client, step: Step) -> torch.Tensor | None:
        if "sums" in (scratch := client.scratch[self.name]):
            sums, counts = class_sums(step.features.detach()[: len(step.real_y)], step.real_y, client.classes)
            scratch["sums"] += sums
            scratch["counts"] += counts
        return super().loss(client, step)

    def fused_loss(self, clients: list[Client], step: FusedStep) -> torch.Tensor | None:
        if "sums" in (scratch := step.model.scratch[self.name]):
            sums, counts = fused_class_sums(step, clients[0].classes)
            scratch["sums"][: len(clients)] += sums
            scratch["counts"][: len(clients)] += counts
        return super().fused_loss(clients, step)

    def end(self, client: Client) -> None:
        """Set the prototypes z̄_c ← (1 − λ) z_c + λ z̄_c of the classes seen in this round; z_c the first time."""
        scratch, state = client.scratch[self.name], client.state[self.name]
        if "sums" not in scratch:
            return
        seen = scratch["counts"] > 0
        means = scratch["sums"] / scratch["counts"].clamp(min=1)[:, None]
        if state:
            known, before = state["known"], state["prototypes"]
            moved = torch.where(known[:, None], (1 - self.momentum) * means + self.momentum * before, means)
            means, seen = torch.where(seen[:, None], moved, before), seen | known
        client.state[self.name] = {"prototypes": means, "known": seen}
