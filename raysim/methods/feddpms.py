"""FedDPMS (Chen & Vikalo, CVPR workshops 2023): clients train on images decoded from others' noisy latent means."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.nn import functional as F

from raysim import models
from raysim.data.synthetic_tables import column, extended, gathered
from raysim.errors import InputError
from raysim.methods.base import Part, Upload
from raysim.methods.common import latent_means as latents
from raysim.models.vae import forward_keeping, latent_divergence
from raysim.privacy.gaussian import of_means
from raysim.settings import setting
from raysim.tensors import to_device, to_host, upload_all

if TYPE_CHECKING:
    from raysim.config import RunConfig
    from raysim.engine.server import Server


@dataclass(frozen=True)
class FedDPMS(Part):
    """FedDPMS: a VAE is trained first; then clients add images decoded from another client's noisy latent means."""

    vae_weight: float = setting(
        0.05, "weight of the KL divergence and of the squared error of all pixels in the first stage (λ)", minimum=0
    )
    first_stage: float = setting(0.4, "share of the rounds that train the VAE (T_p ÷ T)", above=0, maximum=1)
    classes: int = setting(3, "abundant classes a client shares, and scarce ones it looks for (n)", minimum=1)
    quota: int = setting(200, "usable noisy means per shared class; 0: nothing is shared (α)", minimum=0)
    tries: int = setting(
        200, "times that quota candidates are drawn for a class before it stays short of its quota", minimum=1
    )
    noise: float = setting(2.0, "standard deviation of the noise added to an uploaded mean (σ)", minimum=0)
    release: Literal["each", "once"] = setting(
        "each",
        "noisy means to upload per class: quota of them, filtered by their owner (each), or one to vary later (once)",
    )
    variation: float = setting(1.0, "standard deviation around the noisy mean, with release once", minimum=0)
    delta: float = setting(1e-5, "δ of the reported (ε, δ)", minimum=1e-15, maximum=0.5)

    goes_by_rounds = True  # first_stage is a share of them
    replies_with_model = False  # which classes are scarce is seen from labels

    def check(self, config):
        if config.model not in (fitting := models.with_decoder()):
            raise InputError(f"--method feddpms needs a model that decodes; use --model {' or '.join(fitting)}")
        if self.quota and not self.vae_weight:
            raise InputError("--feddpms.vae-weight 0 trains no decoder to share with; add --feddpms.quota 0")
        if self.release == "once" and (alone := [p.name for p in config.parts if p.predicts_with_personal]):
            raise InputError(
                f"--feddpms.release once filters by the global model, whose batch-norm {alone[0]} leaves as it was "
                "before training; use each"
            )
        if several := [part.name for part in config.parts if part.overrides("route")]:
            raise InputError(f"--method {config.method}: {several[0]} has several models, feddpms one; leave one out")

    def switch(self, config: "RunConfig") -> int:
        """The last round of the first stage (T_p)."""
        return max(1, round(self.first_stage * config.rounds))

    def idle(self, config, sizes):
        if self.quota and config.rounds < self.switch(config) + 2:  # means are shared in the round before they are used
            return f"no round is left for shared images after {self.switch(config)} of the first stage; raise --rounds"
        if self.quota and config.clients == 1:
            return "there is no other client to get images from; raise --clients"

    def personal(self, module, t):
        # Also in the second stage, so that averaging leaves the server's decoder as it is.
        return ("decoder.*",) if self.vae_weight else ()

    # -- client ------------------------------------------------------------------------------------------------------

    def begin(self, client):
        if client.t <= self.switch(client.config):
            scratch = client.scratch[self.name] = {}
            if self.vae_weight:
                client.forward = forward_keeping(scratch)
                draw, latent = client.stream(f"{self.name}/latent"), client.model.module.feature_size
                noise = [draw.standard_normal((n, latent), dtype=np.float32) for n in client.largest_batches]
                scratch["noise"] = iter(upload_all(noise, client.y.device))
        elif self.quota:
            decoder, state = client.model.personal_mask([self], client.t), client.state[self.name]
            client.model.weights[decoder] = client.global_weights[decoder]
            state |= client.broadcast[self.name].get(client.id, {})
            if "sharer" in state:
                client.augment(*client.shared_by(client.shared[self.name], state["sharer"]))

    def loss(self, client, step):
        """λ(KL + squared error), with z drawn around the sigmoid mean; the classifier uses the mean itself.

        The error is between pixels in [0, 1], summed over an image: λ was set for a sum.
        """
        if not self.vae_weight or client.t > self.switch(client.config):
            return None
        scratch, module = client.scratch[self.name], client.model.module
        log_variance = module.log_variance(scratch["encoded"])
        z = step.features + (log_variance / 2).exp() * next(scratch["noise"])[: len(step.features)]
        apart = (module.decoder(z) - client.pixels(step.x)).square().flatten(1).sum(1).mean()
        return self.vae_weight * (latent_divergence(step.features, log_variance) + apart)

    def weight(self, client):
        return float(len(client.y)) if client.config.weighting == "samples" else None  # |D̄_k|: with the added images

    def end(self, client):
        """Upload the decoder when the first stage ends, and the noisy means the first time in the second stage."""
        model, first = client.model, self.switch(client.config)
        if client.t == first and self.vae_weight:
            decoder = model.weights[model.personal_mask([self], client.t)]
            weight = torch.tensor([self.weight(client) or 1.0], device=model.device)
            return Upload(sum={"decoder": weight * decoder, "weight": weight})
        if client.t <= first or not self.quota:
            return None
        metadata, state = {"augmented": client.id in client.broadcast[self.name]}, client.state[self.name]
        if "shared" in state:
            return Upload(metadata=metadata)
        state["shared"] = True
        module, limits, draw = model.module, client.pixel_range(), client.stream(f"{self.name}/noise")
        own = client.x[: client.samples], client.y[: client.samples], client.classes, client.config.eval_batch
        means, labels, samples = latents.abundant_means(module, *own, self.classes)
        if self.release == "once":
            means = latents.noisy(means, self.noise, draw)
        else:
            means, labels = latents.usable(
                module,
                means,
                labels,
                deviation=self.noise,
                draw=draw,
                limits=limits,
                quota=self.quota,
                tries=self.tries,
            )
        return Upload(rows={"means": means, "labels": labels}, metadata=metadata | {"samples": samples})

    def reply(self, clients):
        """Upload the n scarcest classes of every client that has no other client's images yet."""
        scarce = [F.one_hot(c.y, c.classes).sum(0).argsort(stable=True)[: self.classes] for c in clients]
        wants = [{} if "sharer" in c.state[self.name] else {"scarce": s} for c, s in zip(clients, scarce, strict=True)]
        return [Upload(each=want) for want in wants]

    # -- server ------------------------------------------------------------------------------------------------------

    def exchange(self, server, t, i):
        state = server.state[self.name]
        waiting = state.get("augmented", 0) < server.config.clients
        # Otherwise the same clients would find nothing among the same offers.
        others = server.config.active < server.config.clients or "skipped" in state
        changed = others or server.shared_since.get(self.name) == t - 1
        return "cohort" if i == 0 and waiting and changed and self.name in server.shared else None

    def receive(self, server, replies):
        sharers, labels = (column(server.shared[self.name], name) for name in ("client", "label"))
        offered = {int(j): set(labels[sharers == j].tolist()) for j in np.unique(sharers)}
        wanted = {client: set(each["scarce"].tolist()) for client, each in replies.each}
        server.state[self.name]["matched"] = {k: {"sharer": j} for k, j in latents.match(wanted, offered).items()}

    def broadcast(self, server):
        return server.state[self.name].get("matched", {})

    def update(self, server, uploads):
        matched = (state := server.state[self.name]).pop("matched", {})
        if uploads.sum:
            decoder = to_host(server.model.personal_mask([self], server.t))
            server.weights[0][decoder] = to_host(uploads.sum["decoder"] / uploads.sum["weight"])
        if self.quota and server.t == self.switch(server.config) + 1:  # every client has downloaded the decoder
            decoder = to_host(server.model.personal_mask([self], server.t))
            server.newly_shared += server.weights[0][decoder].nbytes
        augmented = sum(bool(each["augmented"]) for _, each in uploads.each)
        state.pop("skipped", None)
        if augmented < len(matched):  # --on-client-error skip: they have to be matched again
            state["skipped"] = len(matched) - augmented
        if uploads.each:
            state["augmented"] = state.get("augmented", 0) + augmented
            server.metrics["feddpms.augmented"] = state["augmented"]
        if arrived := [(client, each) for client, each in uploads.each if "means" in each]:
            decoded = [(client, self.decode(server, client, each)) for client, each in arrived]
            if count := sum(len(each["labels"]) for _, each in decoded):
                # A client downloads the means of one other: together they download as much as was uploaded.
                uploaded = sum(each["means"].nbytes + each["labels"].nbytes for _, each in arrived)
                table = extended(server.shared.get(self.name), gathered(decoded, server.t))
                server.share(self.name, table, bytes_each=uploaded / server.config.clients)
            samples = np.concatenate([each["samples"] for _, each in arrived])
            server.metrics |= {"feddpms.means": count, "feddpms.missing": len(samples) * self.quota - count}
            state["fewest"] = int(min(samples.min(), state.get("fewest", np.inf)))

    def certificate(self, server):
        # A sample is in one class of one client, so the class with the fewest samples decides.
        latent, each, state = server.model.module.feature_size, self.release == "each", server.state[self.name]
        return of_means(latent, state.get("fewest"), self.quota if each else 1, self.noise, self.delta, filtered=each)

    def decode(self, server: "Server", client: int, each: dict[str, Any]) -> dict[str, np.ndarray]:
        """Images and labels decoded from a client's means, as every receiver would; with release once, varied first."""
        module = server.model.frozen(to_device(server.weights[0], server.device)).module
        z, labels = to_device((each["means"], each["labels"]), server.device)
        limits = server.scale.limits()
        if self.release == "once":
            draw = server.stream(f"{self.name}/variation/{client}")
            z, labels = latents.usable(
                module,
                z,
                labels,
                deviation=self.variation,
                draw=draw,
                limits=limits,
                quota=self.quota,
                tries=self.tries,
            )
        return to_host({"images": latents.frozen_images(module, z, limits, server.config.eval_batch), "labels": labels})
