"""FedDPMS (Chen & Vikalo, CVPR workshops 2023): clients train on images decoded from others' noisy latent means."""

from dataclasses import dataclass
from typing import Literal

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
from raysim.tensors import to_device, to_host


@dataclass(frozen=True)
class FedDPMS(Part):
    """FedDPMS: a VAE is trained first; then clients add images of other classes, decoded from noisy latent means."""

    vae_weight: float = setting(0.05, "of KL divergence and reconstruction in the first stage (λ)", minimum=0)
    reconstruction: float = setting(1.0, "factor on the reconstruction's mean squared error beside the KL", minimum=0)
    first_stage: float = setting(0.4, "share of the rounds that train the VAE (T_p ÷ T)", above=0, maximum=1)
    classes: int = setting(3, "most abundant classes a client shares, scarcest it looks for (n)", minimum=1)
    quota: int = setting(200, "usable means per shared class; 0: nothing is shared (α)", minimum=0)
    tries: int = setting(200, "times as many candidates as the quota are drawn before a class stays short", minimum=1)
    noise: float = setting(2.0, "standard deviation of what is added to a mean that is sent (σ)", minimum=0)
    release: Literal["each", "once"] = setting("each", "α noisy means, filtered by their owner, or one, varied later")
    variation: float = setting(1.0, "with release once, standard deviation around the noisy mean", minimum=0)
    delta: float = setting(1e-5, "of the (ε, δ) that is reported", minimum=1e-15, maximum=0.5)

    def check(self, config):
        if config.model not in (fitting := models.with_decoder()):
            raise InputError(f"--method feddpms needs a model that decodes; use --model {' or '.join(fitting)}")
        if self.quota and not self.vae_weight:
            raise InputError("--feddpms.vae-weight 0 trains no decoder to share with; add --feddpms.quota 0")
        if several := [part.name for part in config.parts if part.overrides("route")]:
            raise InputError(f"--method {config.method}: {several[0]} has several models, feddpms one; leave one out")

    def switch(self, config) -> int:  # the last round of the first stage, T_p
        return max(1, round(self.first_stage * config.rounds))

    def personal(self, module, t):  # in the second stage too, so that the server's stays as it is
        return ("decoder.*",) if self.vae_weight else ()

    # -- client ------------------------------------------------------------------------------------------------------

    def begin(self, client):
        if client.t <= self.switch(client.config):
            now = client.scratch[self.name] = {"draw": client.stream(f"{self.name}/latent")}
            client.forward = forward_keeping(now) if self.vae_weight else client.forward
        elif self.quota:
            decoder, kept = client.model.personal_mask([self], client.t), client.state[self.name]
            client.model.weights[decoder] = client.global_weights[decoder]
            kept |= client.broadcast[self.name].get(client.id, {})
            if "sharer" in kept:
                client.augment(*client.shared_by(client.shared[self.name], kept["sharer"]))

    def loss(self, client, step):
        """λ(KL + MSE); z is drawn around the sigmoid mean, which the classifier takes as it is."""
        if not self.vae_weight or client.t > self.switch(client.config):
            return None
        now, module = client.scratch[self.name], client.model.module
        log_variance = module.log_variance(now["encoded"])
        z = latents.noisy(step.features, (log_variance / 2).exp(), now["draw"])
        apart = self.reconstruction * F.mse_loss(latents.images(module, z, client.pixel_range()), step.x)
        return self.vae_weight * (latent_divergence(step.features, log_variance) + apart)

    def weight(self, client):
        return float(len(client.y)) if client.config.weighting == "samples" else None  # |D̄_k|

    def end(self, client):
        """After the first stage its decoder; the first time in the second, its means."""
        model, first = client.model, self.switch(client.config)
        if client.t == first and self.vae_weight:
            decoder = model.weights[model.personal_mask([self], client.t)]
            weight = torch.tensor([self.weight(client) or 1.0], device=model.device)
            return Upload(sum={"decoder": weight * decoder, "weight": weight})
        if client.t <= first or not self.quota:
            return None
        told, kept = {"augmented": client.id in client.broadcast[self.name]}, client.state[self.name]
        if "shared" in kept:
            return Upload(metadata=told)
        kept["shared"] = True
        module, limits, draw = model.module, client.pixel_range(), client.stream(f"{self.name}/noise")
        own = client.x[: client.samples], client.y[: client.samples], client.classes, client.config.eval_batch
        means, labels, samples = latents.abundant_means(module, *own, self.classes)
        if self.release == "once":
            means = latents.noisy(means, self.noise, draw)
        else:
            means, labels = latents.usable(module, means, labels, self.noise, draw, limits, self.quota, self.tries)
        return Upload(rows={"means": means, "labels": labels}, metadata=told | {"samples": samples})

    def reply(self, clients):
        """The n scarcest classes of clients not yet augmented."""
        scarce = [F.one_hot(c.y, c.classes).sum(0).argsort(stable=True)[: self.classes] for c in clients]
        wants = [{} if "sharer" in c.state[self.name] else {"scarce": s} for c, s in zip(clients, scarce, strict=True)]
        return [Upload(each=want) for want in wants]

    # -- server ------------------------------------------------------------------------------------------------------

    def exchange(self, server, t, i):
        waiting = server.state[self.name].get("augmented", 0) < server.config.clients
        news = server.config.active < server.config.clients or server.shared_since.get(self.name) == t - 1
        return "cohort" if i == 0 and waiting and news and self.name in server.shared else None

    def receive(self, server, replies):
        sharers, labels = (column(server.shared[self.name], name) for name in ("client", "label"))
        offered = {int(j): set(labels[sharers == j].tolist()) for j in np.unique(sharers)}
        wanted = {client: set(each["scarce"].tolist()) for client, each in replies.each}
        server.state[self.name]["matched"] = {k: {"sharer": j} for k, j in latents.match(wanted, offered).items()}

    def broadcast(self, server):
        return server.state[self.name].get("matched", {})

    def update(self, server, uploads):
        (state := server.state[self.name]).pop("matched", None)
        if uploads.sum:
            decoder = to_host(server.model.personal_mask([self], server.t))
            server.weights[0][decoder] = to_host(uploads.sum["decoder"] / uploads.sum["weight"])
        if uploads.each:
            state["augmented"] = state.get("augmented", 0) + sum(bool(each["augmented"]) for _, each in uploads.each)
            server.metrics["feddpms.augmented"] = state["augmented"]
        if arrived := [(client, each) for client, each in uploads.each if "means" in each]:
            made = [(client, self.decode(server, client, each)) for client, each in arrived]
            if count := sum(len(each["labels"]) for _, each in made):
                # A client is sent the means of one other: together they download what was uploaded.
                sent = sum(each["means"].nbytes + each["labels"].nbytes for _, each in arrived)
                table = extended(server.shared.get(self.name), gathered(made, server.t))
                server.share(self.name, table, bytes_each=sent / server.config.clients)
            samples = np.concatenate([each["samples"] for _, each in arrived])
            server.metrics |= {"feddpms.means": count, "feddpms.missing": len(samples) * self.quota - count}
            state["fewest"] = int(min(samples.min(), state.get("fewest", np.inf)))

    def certificate(self, server):  # one sample is in one class of one client: the class with fewest decides
        latent, each, kept = server.model.module.feature_size, self.release == "each", server.state[self.name]
        return of_means(latent, kept.get("fewest"), self.quota if each else 1, self.noise, self.delta, filtered=each)

    def decode(self, server, client, each):
        """A client's means as images, which every receiver would make of them likewise; release once: varied first."""
        module = server.model.frozen(to_device(server.weights[0], server.device)).module
        z, labels = to_device((each["means"], each["labels"]), server.device)
        limits = server.scale.limits()
        if self.release == "once":
            draw = server.stream(f"{self.name}/variation/{client}")
            z, labels = latents.usable(module, z, labels, self.variation, draw, limits, self.quota, self.tries)
        return to_host({"images": latents.frozen_images(module, z, limits, server.config.eval_batch), "labels": labels})
