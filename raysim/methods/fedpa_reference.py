"""FedPA as in its authors' published code where that departs from the paper, whose figures come from the code."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from raysim.methods.base import Upload
from raysim.methods.common import feature_generator as gen
from raysim.methods.common import step_means
from raysim.methods.common.features import class_means
from raysim.methods.fedpa import FedPA
from raysim.settings import setting


def squared_distance(features: Tensor, labels: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Return each sample's squared distance to its label's prototype, averaged over dimensions; 0 without one."""
    return (features - prototypes[labels]).square().mean(-1) * known[labels]


def collapsed_fidelity(made: Tensor, labels: Tensor, heads: Tensor, biases: Tensor, shares: Tensor) -> Tensor:
    """Return the sum over the clients of the head's mean cross-entropy times the client's mean share of the labels."""
    logits = made @ heads.mT + biases[:, None]
    losses = F.cross_entropy(logits.flatten(0, 1), labels.repeat(len(heads)), reduction="none")
    return (losses.view(len(heads), -1).mean(1) * shares[:, labels].mean(1)).sum()


def mean_diversity(made: Tensor, labels: Tensor, noise: Tensor, pairs: str = "different") -> Tensor:
    """Return exp(−mean(mean|Δh| · mean(Δz)²)): the inner means are over dimensions, the outer one is over all pairs."""
    apart = (made[:, None] - made).abs().mean(2)
    noise_apart = (noise[:, None] - noise).square().mean(2)
    return (-(gen.counted_pairs(labels, pairs) * apart * noise_apart).mean()).exp()


@dataclass(frozen=True)
class FedPAReference(FedPA):
    """FedPA as in its authors' code: squared distances, uniform noise and labels, prototypes from the local steps."""

    lambda_ge_floor: float = setting(1e-4, "lowest value of lambda_ge", minimum=0)
    gamma_fid_floor: float = setting(1e-4, "lowest value of gamma_fid", minimum=0)
    pairs: Literal["same", "different", "all"] = setting("different", "labels of the pairs that diversity keeps apart")
    gen_lr_decay: float = setting(0.98, "factor per round on the generator's learning rate", above=0)
    gen_weight_decay: float = setting(1e-2, "weight decay of the generator's Adam", minimum=0)

    distance = staticmethod(squared_distance)
    fidelity = staticmethod(collapsed_fidelity)
    diversity = staticmethod(mean_diversity)

    def draw(self, stream: np.random.Generator, counts: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Draw uniform noise, and labels uniformly from the classes that have been seen."""
        return gen.draw_inputs(stream, counts > 0, size, self.noise, uniform=True)

    def begin(self, client):
        super().begin(client)
        step_means.start(client.scratch[self.name], client, client.model.module.feature_size if self.aligns else 0)

    def loss(self, client, step):
        if self.lambda_ge or self.lambda_po:
            step_means.add(client.scratch[self.name], step, step.features)
        return super().loss(client, step)

    def fused_loss(self, clients, step):
        if self.lambda_ge or self.lambda_po:
            step_means.fused_add([client.scratch[self.name] for client in clients], step, step.features)
        return super().fused_loss(clients, step)

    def end(self, client):
        """Upload mean features over the local steps times full label counts, and the head with sampled counts plus 1.

        So a class that the client owns but no step has sampled counts as a feature of zeros.
        """
        if not (self.lambda_ge or self.lambda_po):
            return None
        scratch, head = client.scratch[self.name], client.model.module.head
        owned = step_means.label_counts(client)
        upload = Upload(sum={"counts": owned})
        if self.aligns:
            upload.sum["features"] = owned[:, None] * step_means.means(scratch)
        if self.lambda_ge and self.gamma_fid:
            weight, bias = head.weight.detach().clone(), head.bias.detach().clone()
            upload.each = {"head": weight, "bias": bias, "counts": 1 + scratch["seen"]}
        return upload

    def update(self, server, uploads):
        """Train the generator with the previous round's prototypes (in the first round without), then update these."""
        if not uploads.sum:
            return
        state = server.state[self.name]
        state["counts"] = uploads.sum["counts"] + state.get("counts", 0)  # of all rounds so far
        if self.lambda_ge:
            self.update_generator(server, uploads)
        if self.aligns:
            state |= class_means(uploads.sum["features"], uploads.sum["counts"], state)
