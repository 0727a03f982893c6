"""MOON (Li et al., 2021): features are drawn to the global model's and away from the client's previous model's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from raysim.methods.base import Part
from raysim.models.flat import FlatModel
from raysim.settings import setting

if TYPE_CHECKING:
    from raysim.training.client import Client


@dataclass(frozen=True)
class Moon(Part):
    """MOON: a contrastive term between the global model's features and the client's previous model's."""

    mu: float = setting(1.0, "weight of the contrastive term (μ)", minimum=0)
    temperature: float = setting(0.5, "temperature of the similarities (τ)", above=0)

    def idle(self, config, sizes):
        if config.rounds * config.active > config.clients:
            return None  # somebody must be active twice
        cohorts = [config.cohort(t) for t in range(1, config.rounds + 1)]
        if len(set().union(*cohorts)) == sum(map(len, cohorts)):
            return "it needs a client's previous model, and no client is active twice; raise --rounds or --active"

    def begin(self, client):
        """Prepare the two frozen models, the global and the previous; none before the client has trained once."""
        state = client.state[self.name]
        both = (client.model.weights, state["previous"]) if state else ()
        client.scratch[self.name] = {"models": [frozen_features(client.model, weights) for weights in both]}

    def loss(self, client, step):
        return self.term(client, step.x, step.features) if client.scratch[self.name]["models"] else None

    def fused_loss(self, clients, step):
        """Return the terms of the clients, computed one by one since each has its own frozen models.

        Without a previous model a term is 0.
        """
        if not any(client.scratch[self.name]["models"] for client in clients):
            return None
        each = zip(clients, step.x, step.features, step.lengths, strict=True)
        return torch.stack([self.term(client, x[:n], z[:n]) for client, x, z, n in each])

    def term(self, client: "Client", x: Tensor, z: Tensor) -> Tensor:
        """Return μ times the mean of −log softmax(similarities ÷ τ) at the global model, for features z.

        Without models it is 0.
        """
        if not (models := client.scratch[self.name]["models"]):
            return z.new_zeros(())
        near, far = (F.cosine_similarity(z, features(x), dim=1) for features in models)
        return self.mu * F.softplus((far - near) / self.temperature).mean()  # −log softmax of two is log(1 + exp)

    def end(self, client):
        if self.mu:
            client.state[self.name] = {"previous": client.model.weights.clone()}


def frozen_features(model: FlatModel, weights: Tensor) -> Callable[[Tensor], Tensor]:
    """Return x -> features by a copy of the model with these weights, in evaluation mode and without gradient."""
    module = model.frozen(weights).module

    @torch.no_grad()
    def features(x: Tensor) -> Tensor:
        return module.features(x)

    return features
