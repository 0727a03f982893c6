"""A GAN for each client, trained before the first round, from which the client shares unlabelled images."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from raysim.data.synthetic_tables import make_table
from raysim.methods.base import Upload, Uploads
from raysim.methods.common.pseudo_labels import UNLABELLED
from raysim.methods.common.wgan import Gan, GanPart, to_unit
from raysim.settings import setting
from raysim.tensors import to_device

if TYPE_CHECKING:
    from raysim.engine.server import Server
    from raysim.training.client import Client


@dataclass(frozen=True)
class ClientGans(GanPart):
    """A part whose shared dataset comes from the clients' GANs; its labels, at first unknown, are in `server.state`."""

    gan_slice: int = setting(10, "GAN rounds per pass over the clients; runs resume after a whole pass", minimum=1)
    gan_samples: int | None = setting(None, "real images to train each GAN on; none: all of the client's", minimum=1)

    @property
    def passes(self) -> int:
        """Return how many passes over the clients train the GANs."""
        return -(-self.gan_rounds // self.gan_slice)

    def reply(self, clients: list["Client"]) -> list[Upload]:
        return [self.train_gan(client) for client in clients]

    def train_gan(self, client: "Client") -> Upload:
        """Train the client's GAN for one pass; after the last, upload its part of the pool and drop the GAN."""
        real = client.x if client.unlabelled is None else torch.cat([client.x, client.unlabelled])
        if self.gan_samples is not None:
            rows = client.stream(f"{self.name}/samples").permutation(len(real))[: self.gan_samples]
            real = real[torch.from_numpy(rows).to(real.device)]
        pixels, privacy = client.pixels(real), self.privacy(len(real))
        seed = int(client.stream(f"{self.name}/init").integers(2**63))
        gan = Gan(self, real.shape[1:], 0, real.device, client.state[self.name], seed)
        total = self.gan_rounds * self.gan_steps
        steps = min(self.gan_slice * self.gan_steps, total - gan.done)
        conditions = pixels.new_empty(len(real), 0)
        gan.train(to_unit(pixels), conditions, steps, client.stream(f"{self.name}/gan/{gan.done}"), privacy)
        if gan.done < total:
            client.state[self.name] = gan.state()
            return Upload()
        client.state[self.name] = {}
        first, last = (self.pool * k // client.config.clients for k in (client.id, client.id + 1))
        images = gan.sample(pixels.new_empty(last - first, 0), client.stream(f"{self.name}/pool"))
        return Upload(rows={"images": client.scale.from_unit(images)}, metadata=self.privacy_facts(privacy))

    def receive(self, server: "Server", replies: Uploads) -> None:
        if not replies.each:
            return  # the GANs are not finished yet
        images = np.concatenate([upload["images"] for _, upload in replies.each])
        owners = np.concatenate([np.full(len(upload["images"]), client) for client, upload in replies.each])
        unlabelled = np.full(len(images), UNLABELLED, np.int16)
        server.share(self.name, make_table(images, unlabelled, owners, np.full(len(images), server.t)))
        server.state[self.name]["labels"] = to_device(unlabelled, server.device)
        self.note_privacy(server, [upload for _, upload in replies.each])
