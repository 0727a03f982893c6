"""Local training on real and shared synthetic images (HFMDS-FL, eq. 6), for the methods that share some."""

import torch
from torch.nn import functional as F

from raysim.methods.base import Part
from raysim.training.client import Client
from raysim.training.fused import FusedStep, cross_entropies, pad


class MixedTraining(Part):
    """α·CE(real) + (1 − α)·CE(synthetic), once the part has shared images; `alpha` is a setting of the part."""

    def begin(self, client):
        draw = client.stream(f"{self.name}/batches")
        client.scratch[self.name] = {"table": client.shared.get(self.name), "draw": draw}

    def ce_weight(self, client):
        return 1.0 if client.scratch[self.name]["table"] is None else self.alpha

    def loss(self, client, step):
        now = client.scratch[self.name]
        if now["table"] is None or self.alpha == 1:
            return None
        x, y = client.draw_shared(now["table"], now["draw"], len(step.real_y))
        return (1 - self.alpha) * F.cross_entropy(client.model.module(x), y)

    def fused_loss(self, clients, step):
        held = [client.scratch[self.name] for client in clients]
        if held[0]["table"] is None or self.alpha == 1:  # the table is shared: all have it or none
            return None
        draws = [now["draw"] for now in held]
        return (1 - self.alpha) * shared_cross_entropies(step, clients, held[0]["table"], draws)


def shared_cross_entropies(step: FusedStep, clients: list[Client], table, draws: list) -> torch.Tensor:
    """Each client's cross-entropy on random images of a shared dataset, as many as it has real ones in this step."""
    sizes = (step.real_share > 0).sum(1).tolist()
    drawn = [c.draw_shared(table, draw, n) for c, draw, n in zip(clients, draws, sizes, strict=True)]
    x, y, share = pad(drawn)
    return cross_entropies(step.model.head(step.model.features(x, share)), y, share)
