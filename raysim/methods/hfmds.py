"""HFMDS-FL (arXiv 2308.04761): clients share synthetic images with the class-relevant features of real ones."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from raysim import models
from raysim.data.synthetic_tables import extended, gathered
from raysim.errors import InputError
from raysim.methods.base import Upload, balanced_group
from raysim.methods.common.features import class_sums
from raysim.methods.common.local_prototypes import LocalPrototypes
from raysim.methods.common.synthesis import ImageSynthesis
from raysim.privacy.figures import Figure
from raysim.privacy.psnr import psnr
from raysim.privacy.recognition import recognised
from raysim.rng import stream
from raysim.settings import setting
from raysim.tensors import to_device
from raysim.training.client import Client

BATCH = 200  # images to synthesise together, at most
RECOGNISED = 0.5  # share of images that give their source away, from which on a run says so
INERT = 0.01  # share of the cross-entropy's gradient below which the matching loss decides nothing


@dataclass(frozen=True)
class HFMDS(LocalPrototypes, ImageSynthesis):
    """HFMDS-FL: training on shared synthetic images, made by hard feature matching."""

    alpha: float = setting(
        0.5,
        "weight of the loss on real images; synthetic ones have 1 − α (α, eq. 6; 0.1 in the paper)",
        minimum=0,
        maximum=1,
    )
    momentum: float = setting(
        0.5, "momentum of the local prototypes (λ); those of maps are the global model's and have none",
        minimum=0, maximum=1,
    )  # fmt: skip
    every: int = setting(20, "rounds between two syntheses (T_d)", minimum=1)
    first: int | Literal["every"] = setting(
        1, "round of the first synthesis, or every: T_d, as in the paper", minimum=1
    )
    per_client: int = setting(100, "synthetic images per client, at most its number of samples (B_g)", minimum=1)
    accumulate: bool = setting(False, "keep the images of earlier syntheses in the shared dataset")
    share: Literal["synthetic", "real"] = setting(
        "synthetic", "real: share the real images themselves, a bound for studies that GIVES UP ALL PRIVACY"
    )
    group: int | Literal["auto"] = setting(
        "auto", "clients whose images are synthesised in one batch; auto: about 200 images; changes the last bits",
        minimum=1,
    )  # fmt: skip

    def check(self, config):
        if self.share == "synthetic" and (alone := [p.name for p in config.parts if p.predicts_with_personal]):
            raise InputError(
                f"--method {config.method}: hfmds makes images by the global model, whose batch-norm {alone[0]} leaves "
                "as it was before training; leave one out"
            )
        if self.layer == "maps" and config.model not in (known := models.with_maps()):
            raise InputError(
                f"--hfmds.layer maps: --model {config.model} has none; use features, or one of {', '.join(known)}"
            )
        if self.share == "synthetic" and not (self.matches or self.label_weight or self.tv):
            raise InputError("--hfmds.match, --hfmds.label-weight and --hfmds.tv leave no loss; give one a weight")

    def idle(self, config, sizes):
        if config.rounds < (first := self.first_round):
            which = "every" if self.first == "every" else "first"
            return (
                f"its first synthesis is in round {first}, and there are {config.rounds}; lower --{self.name}.{which}"
            )

    @property
    def first_round(self) -> int:
        """The round of the first synthesis."""
        return self.every if self.first == "every" else self.first

    def group_size(self, config):
        """On a CPU core batches of 50 to 200 images are equally fast, of 20 and of 400 a seventh slower."""
        if self.group != "auto":
            return self.group
        if config.on_client_error == "skip":  # who fails must not take others along
            return 1
        return balanced_group(config.clients, max(1, BATCH // self.per_client))

    # -- synthesis, at all clients, at the start of the first round that has one and of every T_d-th after it ----------

    def exchange(self, server, t, i):
        since = t - self.first_round
        return "all" if i == 0 and since >= 0 and since % self.every == 0 else None

    def reply(self, clients):
        rows = [np.sort(c.stream(f"{self.name}/rows").permutation(c.samples)[: self.per_client]) for c in clients]
        drawn = [(c, c.x[r], c.y[r]) for c, r in zip(clients, rows, strict=True)]
        if self.share == "real":
            return [Upload(rows={"images": x, "labels": y}) for _, x, y in drawn]
        real, labels = (torch.cat([pair[i] for pair in drawn]) for i in (1, 2))
        prototypes = torch.cat([self.prototypes(c)[y] for c, _, y in drawn]) if self.matches and self.mu else None
        start = torch.cat([self.start(c.stream(f"{self.name}/noise"), x.shape) for c, x, _ in drawn])
        first = clients[0]
        images, figures = self.synthesise(
            first.model.module,
            real,
            labels,
            prototypes,
            start,
            first.pixel_range(),
            stream(first.config.seed, f"{self.name}/jitter", first.t),  # the same shifts in every group
        )
        figures["psnr"] = psnr(first.pixels(images), first.pixels(real))
        sizes = [len(r) for r in rows]
        made = images.split(sizes)
        found = [
            recognised(x, to_device(r, x.device), (batch for batch, _ in c.everything()))
            for c, r, x in zip(clients, rows, made, strict=True)
        ]
        figures["recognised"] = torch.cat(found)
        uploads = [Upload(rows={"images": x, "labels": y}) for x, y in zip(made, labels.split(sizes), strict=True)]
        for name, values in figures.items():
            for upload, own in zip(uploads, values.split(sizes), strict=True):
                upload.metadata[name] = own
        return uploads

    def keeps_prototypes(self, module):
        """With μ = 0 nothing needs them, and those of maps are computed when they are needed."""
        return self.matches and self.mu != 0 and self.share == "synthetic" and not self.matches_maps(module)

    @torch.no_grad()
    def prototypes(self, client: Client) -> Tensor:
        """The prototypes in the client's state; for a class without one, the global model's mean (not stored)."""
        state = client.state[self.name]
        if state and bool(state["known"][client.y].all()):
            return state["prototypes"]
        layer, _ = self.layer_of(client.model.module)
        sums, counts = zip(*(class_sums(layer(x), y, client.classes) for x, y in client.everything()), strict=True)
        fresh = sum(sums) / sum(counts).clamp(min=1)[:, None]
        return torch.where(state["known"][:, None], state["prototypes"], fresh) if state else fresh

    def receive(self, server, replies):
        if not replies.each:
            return  # every client was skipped
        before = server.shared.get(self.name) if self.accumulate else None
        server.share(self.name, extended(before, gathered(replies.each, server.t)))
        if self.share == "real":
            server.notify("hfmds shares REAL images (--hfmds.share real): a bound for studies, without any privacy")
            return
        figures = replies.each[0][1].keys() - {"images", "labels"}
        for name in sorted(figures):
            values = np.concatenate([each[name] for _, each in replies.each])
            server.metrics[f"{self.name}.{name}"] = float(values.mean(dtype=np.float64))
        server.metrics["psnr"] = server.metrics[f"{self.name}.psnr"]
        if server.metrics[f"{self.name}.recognised"] > RECOGNISED:
            server.notify(
                "hfmds: most synthetic images show which real ones they were made from: treat them like the real ones "
                "(docs/privacy.md: recognised)"
            )
        ratio = server.metrics.get(f"{self.name}.ratio", np.inf)
        if ratio < INERT * self.label_weight:
            server.notify(
                f"hfmds: the matching loss is inert: its gradient is {ratio:.2g} of the cross-entropy's; raise "
                "--hfmds.match-weight, or use auto"
            )

    def certificate(self, server):
        if self.share == "real":
            return [Figure("epsilon", None, note="no certificate: real images are shared as they are")]
        return super().certificate(server)
