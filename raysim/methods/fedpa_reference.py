"""FedPA as its authors' published code has it, where that departs from the paper: the paper's figures come from it."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional as F

from raysim.methods.base import Upload
from raysim.methods.common import feature_generator as gen
from raysim.methods.common.features import class_means, class_sums, fused_class_sums
from raysim.methods.fedpa import FedPA
from raysim.settings import setting


def squared_distance(features, labels, prototypes, known):
    """Each sample's mean squared error over the dimensions; a class without prototype adds nothing."""
    return (features - prototypes[labels]).square().mean(-1) * known[labels]


def collapsed_fidelity(made, labels, heads, biases, shares):
    """Summed over the clients: the mean of the cross-entropies times the mean of the shares."""
    logits = made @ heads.mT + biases[:, None]
    losses = F.cross_entropy(logits.flatten(0, 1), labels.repeat(len(heads)), reduction="none")
    return (losses.view(len(heads), -1).mean(1) * shares[:, labels].mean(1)).sum()


@dataclass(frozen=True)
class FedPAReference(FedPA):
    """FedPA as in its authors' code: squared distances, uniform noise and labels, prototypes from the local steps."""

    lambda_ge_floor: float = setting(1e-4, "its lowest value", minimum=0)
    lambda_po_floor: float = setting(1e-4, "its lowest value", minimum=0)
    gamma_fid_floor: float = setting(1e-4, "its lowest value", minimum=0)
    pairs: Literal["same", "different", "all"] = setting("different", "labels of the pairs to keep apart")
    gen_lr_decay: float = setting(0.98, "its factor per round", above=0)
    gen_weight_decay: float = setting(1e-2, "of the generator's Adam", minimum=0)

    distance = staticmethod(squared_distance)
    fidelity = staticmethod(collapsed_fidelity)

    def draw(self, stream, counts, size):
        """Uniform noise, every label the federation has equally likely."""
        return gen.draw_inputs(stream, counts > 0, size, self.noise, uniform=True)

    def begin(self, client):
        super().begin(client)
        size = client.model.module.feature_size
        client.scratch[self.name]["features"] = torch.zeros(client.classes, size, device=client.y.device)
        client.scratch[self.name]["counts"] = torch.zeros(client.classes, device=client.y.device)

    def loss(self, client, step):
        now = client.scratch[self.name]
        if self.lambda_ge or self.lambda_po:
            sums, counts = class_sums(step.features.detach()[: len(step.real_y)], step.real_y, client.classes)
            now["features"] += sums
            now["counts"] += counts
        return super().loss(client, step)

    def fused_loss(self, clients, step):
        if self.lambda_ge or self.lambda_po:
            for client, sums, counts in zip(clients, *fused_class_sums(step, clients[0].classes), strict=True):
                client.scratch[self.name]["features"] += sums
                client.scratch[self.name]["counts"] += counts
        return super().fused_loss(clients, step)

    def end(self, client):
        """Prototypes are means over the local steps, as the model was then; label counts start at 1."""
        if not (self.lambda_ge or self.lambda_po):
            return None
        now, head = client.scratch[self.name], client.model.module.head
        upload = Upload(sum={"counts": now["counts"]})
        if self.aligns:
            upload.sum["features"] = now["features"]
        if self.lambda_ge and self.gamma_fid:
            weight, bias = head.weight.detach().clone(), head.bias.detach().clone()
            upload.each = {"head": weight, "bias": bias, "counts": 1 + now["counts"]}
        return upload

    def update(self, server, uploads):
        """The generator first, with the last round's prototypes, so none in the first round."""
        if not uploads.sum:
            return
        state = server.state[self.name]
        state["counts"] = uploads.sum["counts"] + state.get("counts", 0)  # what the federation has shown so far
        if self.lambda_ge:
            self.update_generator(server, uploads)
        if self.aligns:
            state |= class_means(uploads.sum["features"], uploads.sum["counts"], state)
