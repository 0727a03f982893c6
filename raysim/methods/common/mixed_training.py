"""Local training on real and shared synthetic images (HFMDS-FL, eq. 6), for methods that share images."""

import torch
from torch.nn import functional as F

from raysim.methods.base import Part
from raysim.training.client import Client, Step
from raysim.training.fused import FusedStep, Stack, cross_entropies, shared_batches


class MixedTraining(Part):
    """A part that trains on α·CE(real) + (1 − α)·CE(synthetic) once it has shared images."""

    alpha: float  # a setting of the subclass

    def begin(self, client: Client) -> None:
        shared, draw = client.shared.get(self.name), client.stream(f"{self.name}/batches")
        client.scratch[self.name] = {}
        if shared is not None and self.alpha < 1:
            rows = client.draw_rows(len(shared), draw)
            together = client.config.fuse_size > 1
            client.scratch[self.name] |= {"rows": rows} if together else {"drawn": shared.batches(rows)}

    def begin_fused(self, clients: list[Client], stack: Stack) -> None:
        stack.scratch[self.name] = {}
        if "rows" in clients[0].scratch[self.name]:  # as at all clients
            rows = [client.scratch[self.name]["rows"] for client in clients]
            stack.scratch[self.name]["drawn"] = shared_batches(clients[0].shared[self.name], rows)

    def ce_weight(self, client: Client) -> float:
        return 1.0 if client.shared.get(self.name) is None else self.alpha

    def extra(self, client: Client) -> torch.Tensor | None:
        scratch = client.scratch[self.name]
        if "drawn" not in scratch:
            return None
        x, scratch["labels"] = next(scratch["drawn"])
        return x

    def loss(self, client: Client, step: Step) -> torch.Tensor | None:
        scratch = client.scratch[self.name]
        if "drawn" not in scratch:
            return None
        return (1 - self.alpha) * F.cross_entropy(step.extra[self.name], scratch["labels"])

    def fused_loss(self, clients: list[Client], step: FusedStep) -> torch.Tensor | None:
        """Return each client's loss on as many random shared images as it has real ones in this step."""
        scratch = step.model.scratch[self.name]
        if "drawn" not in scratch:
            return None
        x, y = next(scratch["drawn"])
        logits = step.model.head(step.model.features(x, step.real_share))
        return (1 - self.alpha) * cross_entropies(logits, y, step.real_share)
