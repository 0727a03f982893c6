"""FedEnsemble: several models predict together, by the average of their softmax."""

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
    """FedEnsemble: the active clients' models predict together, or M models the clients train in turns."""

    mode: Literal["clients", "models"] = setting("clients", "which predict: the active clients' models, or M global")
    models: int = setting(5, "global models in mode `models` (M)", minimum=1, maximum=1000)

    def check(self, config):
        if kept := [part.name for part in config.parts if part.predicts_with_personal]:
            raise InputError(
                f"--method {config.method}: fedensemble predicts for all clients, {kept[0]} with what each one keeps; "
                "use one of them"
            )
        if config.evaluation != "global":
            raise InputError(f"--method {config.method}: fedensemble predicts for all clients; use --evaluation global")
        bound = [p for p in config.parts if p is not self and (p.overrides("end") or p.overrides("personal"))]
        if self.mode == "models" and bound:
            raise InputError(
                f"--fedensemble.mode models trains several models, {bound[0].name} follows one from round to round; "
                "use --fedensemble.mode clients"
            )

    def predict(self, models, x):
        """The logarithm of the averaged softmax. With the clients' models after it, the first is their average."""
        voters = models[1:] if self.mode == "clients" and len(models) > 1 else models
        votes = torch.stack([model(x).log_softmax(1) for model in voters])
        return votes.logsumexp(0) - math.log(len(voters))

    # -- the active clients' models ----------------------------------------------------------------------------------

    def end(self, client):
        """The model once more, since the average has it only in a sum; it is sent once."""
        return Upload(metadata={"model": client.model.weights.clone()}) if self.mode == "clients" else None

    def update(self, server, uploads):
        if self.mode == "clients" and uploads.each:
            server.weights[1:] = [np.array(each["model"]) for _, each in uploads.each]

    # -- M models ----------------------------------------------------------------------------------------------------

    def setup(self, server):
        """Further models, each from an initialisation of its own."""
        data = server.data
        for i in range(1, self.models) if self.mode == "models" else ():
            seed = int(server.stream(f"{self.name}/init/{i}").integers(2**63))
            module = build(server.config.model, data.shape, data.classes, seed)
            server.weights.append(to_host(FlatModel(module.eval(), server.device).weights))

    def route(self, server, t, clients):
        """In M rounds every client trains every model once, in every round each model has its share of the clients."""
        if self.mode == "clients":
            return None
        cycle, turn = divmod(t - 1, self.models)
        order = stream(server.config.seed, f"server/{self.name}/turns", cycle).permutation(server.config.clients)
        return {k: int(order[k] + turn) % self.models for k in clients}
