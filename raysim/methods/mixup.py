"""Mixup (Zhang et al., 2018) at every client: batches are mixed with themselves in another order."""

from dataclasses import dataclass

import numpy as np
import torch

from raysim.errors import InputError
from raysim.methods.base import Part
from raysim.methods.common.pseudo_labels import UNLABELLED, draw_rows, mixed, predictions, pseudo_labels, soft
from raysim.settings import setting

OTHERS = ("naivemix", "fedmix", "sdafl")


@dataclass(frozen=True)
class Mixup(Part):
    """Mixup: local mixtures λ·x + (1 − λ)·x′ with λ ~ Beta(β, β).

    With --labelled, unlabelled images join the batch under the pseudo-label the round's global model is sure of.
    """

    beta: float = setting(1.0, "of the share's distribution; 0: no mixing, and no pseudo-labels (α)", minimum=0)
    threshold: float = setting(0.95, "probability above which a pseudo-label counts; 1: none", minimum=0, maximum=1)

    def check(self, config):
        if others := [part.name for part in config.parts if part.name in OTHERS]:
            raise InputError(f"--method {config.method}: mixup and {others[0]} both mix batches; use one of them")

    def begin(self, client):
        now = client.scratch[self.name] = {"draw": client.stream(f"{self.name}/batches"), "rows": np.empty(0, np.int64)}
        if self.beta and client.unlabelled is not None and len(client.unlabelled):
            client.model.module.eval()
            found = predictions(client.model.module, client.unlabelled, client.config.eval_batch)
            client.model.module.train()
            now["labels"] = pseudo_labels(*found, self.threshold)
            now["rows"] = np.flatnonzero(now["labels"].cpu().numpy() != UNLABELLED)

    def batch(self, client, x, y):
        now = client.scratch[self.name]
        if not self.beta:
            return x, y
        if len(now["rows"]):
            drawn = torch.from_numpy(draw_rows(now["rows"], now["draw"], client.config.unlabelled_batch)).to(x.device)
            x = torch.cat([x, client.unlabelled[drawn]])
            y = torch.cat([soft(y, client.classes), soft(now["labels"][drawn], client.classes)])
        order = torch.from_numpy(now["draw"].permutation(len(x))).to(x.device)
        return mixed((x, y), (x[order], y[order]), now["draw"].beta(self.beta, self.beta), client.classes)
