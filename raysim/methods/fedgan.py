"""FedGAN: clients also train on images from one conditional GAN, trained by federated averaging before round 1."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional as F

from raysim.data.synthetic_tables import SERVER, make_table
from raysim.methods.base import Upload
from raysim.methods.common.mixed_training import MixedTraining
from raysim.methods.common.wgan import Gan, GanPart, to_unit
from raysim.settings import setting
from raysim.tensors import to_host
from raysim.training.client import Client

if TYPE_CHECKING:
    from raysim.engine.server import Server


@dataclass(frozen=True)
class FedGAN(MixedTraining, GanPart):
    """FedGAN: α·CE(real) + (1 − α)·CE(synthetic), with images from one conditional GAN trained by all clients."""

    alpha: float = setting(
        0.5, "weight of the loss on real images; synthetic ones have 1 − α (as in HFMDS-FL)", minimum=0, maximum=1
    )

    # -- before the first round: rounds of the GAN, then images ----------------------------------------------------

    def setup(self, server):
        if self.pool:
            seed = int(server.stream(f"{self.name}/init").integers(2**63))
            gan = Gan(self, server.data.shape, server.data.classes, server.device, seed=seed)
            server.state[self.name] = gan.state()
            del server.state[self.name]["adam"]  # the clients start with fresh moments in every GAN round

    def broadcast(self, server):
        return {key: value for key, value in server.state[self.name].items() if key != "privacy"}

    def reply(self, clients):
        return [self.trained(client) for client in clients]

    def trained(self, client: Client) -> Upload:
        """Return the upload of a client that trained the GAN for one round: weighted networks and label counts."""
        state = client.broadcast[self.name]
        gan = Gan(self, client.x.shape[1:], client.classes, client.y.device, state)
        labels = F.one_hot(client.y, client.classes).float()
        draw = client.stream(f"{self.name}/gan/{gan.done}")
        privacy = self.privacy(client.samples)
        gan.train(to_unit(client.pixels(client.x)), labels, self.gan_steps, draw, privacy)
        weight = float(client.samples) if client.config.weighting == "samples" else 1.0
        total = {"generator": weight * gan.generator.weights, "critic": weight * gan.critic.weights}
        facts = self.privacy_facts(privacy) if gan.done == self.gan_rounds * self.gan_steps else {}
        return Upload(sum=total | {"weight": labels.new_tensor([weight]), "counts": labels.sum(0)}, metadata=facts)

    def receive(self, server, replies):
        if not replies.sum:
            return  # every client was skipped
        state, weight = server.state[self.name], replies.sum["weight"]
        state |= {name: replies.sum[name] / weight for name in ("generator", "critic")}
        state["done"] += self.gan_steps
        if state["done"] == self.gan_rounds * self.gan_steps:
            self.share_images(server, replies.sum["counts"])
            self.note_privacy(server, [upload for _, upload in replies.each])

    def share_images(self, server: "Server", counts: torch.Tensor) -> None:
        """Share generated images, equally many of every class that some client has, and drop the GAN from the state."""
        gan = Gan(self, server.data.shape, len(counts), server.device, server.state[self.name])
        server.state[self.name] = {}
        present = np.flatnonzero(to_host(counts))
        labels = present[np.arange(self.pool) % len(present)]
        given = F.one_hot(torch.from_numpy(labels), len(counts)).float().to(server.device)
        generated = gan.sample(given, server.stream(f"{self.name}/pool"))
        images = to_host(server.scale.from_unit(generated))
        server.share(self.name, make_table(images, labels, np.full(self.pool, SERVER), np.full(self.pool, server.t)))
