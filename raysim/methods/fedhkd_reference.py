"""FedHKD as in the code of FedPA's authors, who compare with it: squared distances, knowledge from the local steps."""

from dataclasses import dataclass

import torch
from torch import Tensor

from raysim.methods.base import Upload
from raysim.methods.common import step_means
from raysim.methods.fedhkd import FedHKD
from raysim.settings import setting


@dataclass(frozen=True)
class FedHKDReference(FedHKD):
    """FedHKD as in FedPA's code: mean squared errors, noise 0.02, knowledge from a client's larger classes only."""

    noise: float = setting(0.02, "standard deviation of the noise added to a client's mean features", minimum=0)
    least: float = setting(
        0.25, "share of a client's samples that a class must have for its knowledge to count", minimum=0, maximum=1
    )

    def begin(self, client):
        module = client.model.module
        client.scratch[self.name] = {}
        step_means.start(client.scratch[self.name], client, module.feature_size + module.head.out_features)

    def loss(self, client, step):
        if self.lambda_q or self.gamma_h:
            step_means.add(client.scratch[self.name], step, self.at_step(step))
        return super().loss(client, step)

    def fused_loss(self, clients, step):
        if self.lambda_q or self.gamma_h:
            step_means.fused_add([client.scratch[self.name] for client in clients], step, self.at_step(step))
        return super().fused_loss(clients, step)

    def at_step(self, step) -> Tensor:
        """Return features and soft predictions of a step's samples, side by side."""
        return torch.cat([step.features.detach(), self.soften(step.logits.detach())], -1)

    def apart(self, values: Tensor, targets: Tensor) -> Tensor:
        return (values - targets).square().mean(-1)

    @torch.no_grad()
    def end(self, client):
        """Upload mean features, with noise, and soft predictions over the local steps times full label counts."""
        if not (self.lambda_q or self.gamma_h):
            return None
        knowledge, owned = step_means.means(client.scratch[self.name]), step_means.label_counts(client)
        if self.noise:
            knowledge[:, : client.model.module.feature_size] += self.drawn_noise(client)
        counts = owned * (owned >= self.least * client.samples)
        return Upload(sum={"knowledge": counts[:, None] * knowledge, "counts": counts})

    def update(self, server, uploads):
        """Average by counts; a class that no client has enough of is known too, by a knowledge of zeros."""
        if uploads.sum:
            counts = uploads.sum["counts"]
            means = uploads.sum["knowledge"] / counts.clamp(min=1)[:, None]
            server.state[self.name] = {"prototypes": means, "known": torch.ones_like(counts, dtype=torch.bool)}
