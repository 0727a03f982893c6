"""Local training on real and shared synthetic images (HFMDS-FL, eq. 6), for methods that share images."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional as F

from raysim.methods.base import Part
from raysim.training.client import Client, Step
from raysim.training.fused import FusedStep, cross_entropies, pad

if TYPE_CHECKING:
    import pyarrow as pa


class MixedTraining(Part):
    """A part that trains on α·CE(real) + (1 − α)·CE(synthetic) once it has shared images."""

    alpha: float  # a setting of the subclass

    def begin(self, client: Client) -> None:
        draw = client.stream(f"{self.name}/batches")
        client.scratch[self.name] = {"table": client.shared.get(self.name), "draw": draw}

    def ce_weight(self, client: Client) -> float:
        return 1.0 if client.scratch[self.name]["table"] is None else self.alpha

    def loss(self, client: Client, step: Step) -> torch.Tensor | None:
        scratch = client.scratch[self.name]
        if scratch["table"] is None or self.alpha == 1:
            return None
        x, y = client.draw_shared(scratch["table"], scratch["draw"], len(step.real_y))
        return (1 - self.alpha) * F.cross_entropy(client.model.module(x), y)

    def fused_loss(self, clients: list[Client], step: FusedStep) -> torch.Tensor | None:
        table = clients[0].scratch[self.name]["table"]  # the same at all clients
        if table is None or self.alpha == 1:
            return None
        draws = [client.scratch[self.name]["draw"] for client in clients]
        return (1 - self.alpha) * shared_cross_entropies(step, clients, table, draws)


def shared_cross_entropies(
    step: FusedStep, clients: list[Client], table: "pa.Table", draws: list[np.random.Generator]
) -> torch.Tensor:
    """Each client's cross-entropy on random images of a shared dataset, as many as it has real ones in this step."""
    sizes = (step.real_share > 0).sum(1).tolist()
    drawn = [c.draw_shared(table, draw, n) for c, draw, n in zip(clients, draws, sizes, strict=True)]
    x, y, share = pad(drawn)
    return cross_entropies(step.model.head(step.model.features(x, share)), y, share)
