"""FedEnsemble: several models predict together, by the average of their softmax or logits."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from raysim.errors import InputError
from raysim.methods.base import Part, Upload
from raysim.models import build
from raysim.models.flat import FlatModel
from raysim.rng import stream
from raysim.settings import setting
from raysim.tensors import to_host


@dataclass(frozen=True)
class FedEnsemble(Part):
    """FedEnsemble: the models of the cohort predict together, or M global models that clients train in turns."""

    mode: Literal["clients", "models"] = setting(
        "clients", "models that predict together: the cohort's (clients), or M global ones (models)"
    )
    vote: Literal["softmax", "logits"] = setting(
        "softmax", "what is averaged over the models: their softmax, or their logits (as in FedPA's code)"
    )
    models: int = setting(5, "number of global models in mode `models` (M)", minimum=1, maximum=1000)

    def check(self, config):
        bound = [p for p in config.parts if p is not self and (p.overrides("end") or p.overrides("personal"))]
        if self.mode == "models" and bound:
            raise InputError(
                f"--fedensemble.mode models trains several models, {bound[0].name} follows one from round to round; "
                "use --fedensemble.mode clients"
            )

    def idle(self, config, sizes):
        if self.mode == "clients" and config.active == 1:
            return "one active client is no ensemble; raise --active"
        if self.mode == "models" and self.models == 1:
            return "one model is no ensemble; raise --fedensemble.models"

    def predict(self, models, x):
        """Return the logarithm of the averaged softmax of the models, or their averaged logits.

        In mode `clients` the cohort's models, with what they keep to themselves, follow the global one, which is their
        average and does not vote.
        """
        voters = models[1:] if self.mode == "clients" and len(models) > 1 else models
        votes = torch.stack([model(x) for model in voters])
        if self.vote == "logits":
            return votes.mean(0)
        return votes.log_softmax(2).logsumexp(0) - math.log(len(voters))

    # -- mode `clients`: the cohort's models -------------------------------------------------------------------------

    def end(self, client):
        """Upload the client's model as metadata.

        It is sent anyway, but the server sees only the sum over the clients.
        """
        return Upload(metadata={"model": client.model.weights.clone()}) if self.mode == "clients" else None

    def update(self, server, uploads):
        if self.mode == "clients" and uploads.each:
            server.weights[1:] = [np.array(each["model"]) for _, each in uploads.each]

    # -- mode `models`: M global models ------------------------------------------------------------------------------

    def setup(self, server):
        """Add M − 1 models to the server's, each with its own initialisation."""
        data = server.data
        for i in range(1, self.models) if self.mode == "models" else ():
            seed = int(server.stream(f"{self.name}/init/{i}").integers(2**63))
            module = build(server.config.model, data.shape, data.classes, seed)
            server.weights.append(to_host(FlatModel(module.eval(), server.device).weights))

    def route(self, server, t, clients):
        """Spread the clients evenly over the models.

        Every client trains every model once in M rounds.
        """
        if self.mode == "clients":
            return None
        cycle, turn = divmod(t - 1, self.models)
        order = stream(server.config.seed, f"server/{self.name}/turns", cycle).permutation(server.config.clients)
        return {k: int(order[k] + turn) % self.models for k in clients}
