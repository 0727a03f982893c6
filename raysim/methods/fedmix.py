"""FedMix (Yoon et al., 2021): the loss of NaiveMix expanded to first order in λ, so that no image is mixed."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from raysim.errors import InputError
from raysim.methods.naivemix import NaiveMix
from raysim.training.client import Client
from raysim.training.fused import cross_entropies, pad


@dataclass(frozen=True)
class FedMix(NaiveMix):
    """FedMix: (1−λ)CE(f((1−λ)x), y) + λCE(f((1−λ)x), ȳ) + λ⟨∂ℓ₁/∂x, x̄⟩ with means x̄, ȳ of M samples."""

    def check(self, config):
        others = (part for part in config.parts if part is not self)
        if changing := [part.name for part in others if part.overrides("batch") or part.overrides("ce_weight")]:
            raise InputError(
                f"--method {config.method}: fedmix expands the whole loss of real batches, and {changing[0]} changes "
                "these or its weight; use one of them, or naivemix"
            )
        if config.compile != "no":
            raise InputError("--method fedmix differentiates twice, which --compile cannot; leave one out")

    def mix(self, client: Client, x: Tensor, y: Tensor, mean_x: Tensor, mean_y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the batch (1−λ)x, y; the first term of the loss is then (1−λ) times the step's own cross-entropy."""
        client.scratch[self.name]["means"] = mean_x, mean_y
        return ((1 - self.ratio) * x).requires_grad_(), y

    def ce_weight(self, client):
        return 1.0 if client.shared.get(self.name) is None else 1 - self.ratio

    def loss(self, client, step):
        """Return the second and the third term of the loss, with the derivative by the network's input, (1−λ)x."""
        if client.shared.get(self.name) is None:
            return None
        mean_x, mean_y = client.scratch[self.name]["means"]
        (slope,) = torch.autograd.grad((1 - self.ratio) * step.ce, [step.x], create_graph=True)
        return self.ratio * (F.cross_entropy(step.logits, mean_y) + (slope * mean_x).sum())

    def fused_loss(self, clients, step):
        if clients[0].shared.get(self.name) is None:
            return None
        mean_x, mean_y, share = pad([client.scratch[self.name]["means"] for client in clients])
        (slope,) = torch.autograd.grad((1 - self.ratio) * step.ce.sum(), [step.x], create_graph=True)
        return self.ratio * (cross_entropies(step.logits, mean_y, share) + (slope * mean_x).flatten(1).sum(1))
