"""MOON (Li et al., 2021): features are drawn to the global model's and away from those the client had before."""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from raysim.methods.base import Part
from raysim.models.flat import FlatModel
from raysim.settings import setting


@dataclass(frozen=True)
class Moon(Part):
    """MOON: a contrastive term between the global model's features and the client's previous model's."""

    mu: float = setting(1.0, "weight of the contrastive term (μ)", minimum=0)
    temperature: float = setting(0.5, "of the similarities (τ)", above=0)

    def begin(self, client):
        """The two frozen models; none before the client has trained once."""
        kept = client.state[self.name]
        wanted = (client.model.weights, kept["previous"]) if kept else ()
        client.scratch[self.name] = {"models": [frozen_features(client.model, weights) for weights in wanted]}

    def loss(self, client, step):
        return self.term(client, step.x, step.features) if client.scratch[self.name]["models"] else None

    def fused_loss(self, clients, step):
        """Client by client: every one has frozen models of its own. A client without a previous model adds 0."""
        if not any(client.scratch[self.name]["models"] for client in clients):
            return None
        lengths = (step.share > 0).sum(1).tolist()
        each = zip(clients, step.x, step.features, lengths, strict=True)
        return torch.stack([self.term(client, x[:n], z[:n]) for client, x, z, n in each])

    def term(self, client, x, z):
        """μ·mean −log softmax of the similarities over τ, where the global model's is the right answer."""
        if not (models := client.scratch[self.name]["models"]):
            return z.new_zeros(())
        near, far = (F.cosine_similarity(z, features(x), dim=1) for features in models)
        return self.mu * F.softplus((far - near) / self.temperature).mean()  # log(1 + exp): softmax of two

    def end(self, client):
        if self.mu:
            client.state[self.name] = {"previous": client.model.weights.clone()}


def frozen_features(model: FlatModel, weights: torch.Tensor):
    """x -> features by a model of its own with these weights, in evaluation mode and without gradient."""
    module = model.frozen(weights).module

    @torch.no_grad()
    def features(x: torch.Tensor) -> torch.Tensor:
        return module.features(x)

    return features
