"""Mixup (Zhang et al., 2018) at every client: every batch is mixed with a permutation of itself."""

from dataclasses import dataclass

import numpy as np
import torch

from raysim.errors import InputError
from raysim.methods.base import Part
from raysim.methods.common.pseudo_labels import UNLABELLED, draw_rows, mixed, predictions, pseudo_labels, soft
from raysim.settings import setting
from raysim.tensors import upload_all

OTHERS = ("naivemix", "fedmix", "sdafl")  # methods that mix batches too


@dataclass(frozen=True)
class Mixup(Part):
    """Mixup: local mixtures λ·x + (1 − λ)·x′ with λ ~ Beta(β, β).

    With --labelled, unlabelled images join the batch if the round's global model gives them a confident pseudo-label.
    """

    adds_samples = True

    beta: float = setting(
        1.0,
        "parameter of the mixing weight's Beta(β, β); 0: no mixing and no pseudo-labels (α of the paper)",
        minimum=0,
    )
    threshold: float = setting(0.95, "probability above which a pseudo-label is used; 1: never", minimum=0, maximum=1)

    def check(self, config):
        if others := [part.name for part in config.parts if part.name in OTHERS]:
            raise InputError(f"--method {config.method}: mixup and {others[0]} both mix batches; use one of them")

    def begin(self, client):
        scratch = client.scratch[self.name] = {}
        if not self.beta:
            return
        usable = np.empty(0, np.int64)
        if client.unlabelled is not None and len(client.unlabelled):
            client.model.module.eval()
            found = predictions(client.model.module, client.unlabelled, client.config.eval_batch)
            client.model.module.train()
            scratch["labels"] = pseudo_labels(*found, self.threshold)
            usable = np.flatnonzero(scratch["labels"].cpu().numpy() != UNLABELLED)
        draw, drawn, orders, shares = client.stream(f"{self.name}/batches"), [], [], []
        for size in client.batch_sizes:
            drawn.append(draw_rows(usable, draw, client.config.unlabelled_batch) if len(usable) else usable)
            orders.append(draw.permutation(size + len(drawn[-1])))
            shares.append(draw.beta(self.beta, self.beta))
        device = client.y.device
        scratch["draws"] = zip(upload_all(drawn, device), upload_all(orders, device), shares, strict=True)

    def batch(self, client, x, y):
        if not self.beta:
            return x, y
        scratch = client.scratch[self.name]
        drawn, order, share = next(scratch["draws"])
        if len(drawn):
            x = torch.cat([x, client.unlabelled[drawn]])
            y = torch.cat([soft(y, client.classes), soft(scratch["labels"][drawn], client.classes)])
        return mixed((x, y), (x[order], y[order]), share, client.classes)
