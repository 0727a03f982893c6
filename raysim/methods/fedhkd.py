"""FedHKD (Chen et al., 2023): clients learn from the mean features and soft predictions of every class."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysim.methods.base import Part, Upload
from raysim.methods.common.features import class_means, class_sums
from raysim.settings import setting
from raysim.training.client import Client


@dataclass(frozen=True)
class FedHKD(Part):
    """FedHKD: per-class mean features and soft predictions, averaged by the server, as targets for the clients."""

    updates_models = False

    lambda_q: float = setting(0.05, "weight of the head's distance to the soft predictions (λ)", minimum=0)
    gamma_h: float = setting(0.05, "weight of the features' distance to the mean features (γ)", minimum=0)
    temperature: float = setting(0.5, "temperature of the soft predictions (T)", above=0)
    noise: float = setting(0.0, "standard deviation of the noise added to a client's mean features", minimum=0)

    def idle(self, config, sizes):
        if config.rounds == 1:
            return "clients learn from the round before; raise --rounds"

    # -- client; the broadcast is empty in the first round -----------------------------------------------------------

    def loss(self, client, step):
        return self.term(client, client.model.module.head, step.real_features, step.real_y, 1 / len(step.real_y))

    def fused_loss(self, clients, step):
        def heads(means: Tensor) -> Tensor:
            return step.model.head(means.expand(len(clients), -1, -1))

        return self.term(clients[0], heads, step.real_features, step.real_y, step.real_share)

    def term(
        self, client: Client, head: Callable[[Tensor], Tensor], features: Tensor, labels: Tensor, share: Tensor | float
    ) -> Tensor | None:
        """Return λ·mean_c‖softmax(d(H^c)/T) − Q^c‖ + γ·mean‖e(x) − H^y‖.

        The first mean is over the classes with known H and Q.
        """
        broadcast, size, total = client.broadcast[self.name], features.shape[-1], None
        if not broadcast:
            return None
        known, prototypes = broadcast["known"], broadcast["prototypes"]
        means, predictions = prototypes[:, :size], prototypes[:, size:]
        if self.lambda_q:
            apart = self.apart(self.soften(head(means)), predictions)
            total = self.lambda_q * (apart * known).sum(-1) / known.sum()
        if self.gamma_h:
            apart = self.gamma_h * (self.apart(features, means[labels]) * known[labels] * share).sum(-1)
            total = apart if total is None else total + apart
        return total

    def apart(self, values: Tensor, targets: Tensor) -> Tensor:
        """Return how far each row of values is from its target."""
        return torch.linalg.vector_norm(values - targets, dim=-1)

    def soften(self, logits: Tensor) -> Tensor:
        """Return the softmax of the logits at the part's temperature."""
        return (logits / self.temperature).softmax(-1)

    @torch.no_grad()
    def end(self, client):
        """Upload H and Q times their counts, side by side, so that their sums give averages weighted by counts."""
        if not (self.lambda_q or self.gamma_h):
            return None
        module, classes = client.model.module, client.classes
        batches = [class_sums(self.knowledge(module, x), y, classes) for x, y in client.everything()]
        sums, counts = (sum(column) for column in zip(*batches, strict=True))
        if self.noise:
            sums[:, : module.feature_size] += counts[:, None] * self.drawn_noise(client)
        return Upload(sum={"knowledge": sums, "counts": counts})

    def drawn_noise(self, client: Client) -> Tensor:
        """Draw the noise on the client's mean features in this round."""
        size = client.classes, client.model.module.feature_size
        drawn = client.stream(f"{self.name}/noise").standard_normal(size, dtype=np.float32)
        return self.noise * torch.from_numpy(drawn).to(client.y.device)

    def knowledge(self, module: Any, x: Tensor) -> Tensor:
        """Return the features of x, followed by its soft predictions where these are used."""
        features = module.features(x)
        return torch.cat([features, self.soften(module.head(features))], 1) if self.lambda_q else features

    # -- server ------------------------------------------------------------------------------------------------------

    def broadcast(self, server):
        return server.state[self.name]

    def update(self, server, uploads):
        """Average H and Q by counts; a class without samples keeps its last."""
        if uploads.sum:
            before = server.state[self.name]
            server.state[self.name] = class_means(uploads.sum["knowledge"], uploads.sum["counts"], before)
