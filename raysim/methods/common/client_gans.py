"""Every client trains a GAN of its own before the first round, and shares unlabelled images from it."""

from dataclasses import dataclass

import numpy as np
import torch

from raysim.data.synthetic_tables import make_table
from raysim.methods.base import Upload
from raysim.methods.common.pseudo_labels import UNLABELLED
from raysim.methods.common.wgan import Gan, GanPart, to_unit
from raysim.settings import setting
from raysim.tensors import to_device


@dataclass(frozen=True)
class ClientGans(GanPart):
    """A part whose shared dataset is what the clients' GANs made, with labels in `server.state` that begin unknown."""

    gan_slice: int = setting(10, "GAN rounds per pass over the clients; a stopped run goes on after a pass", minimum=1)
    gan_samples: int | None = setting(None, "real images each GAN is trained on; none: all the client has", minimum=1)

    def exchange(self, server, t, i):
        return "all" if self.pool and t == 1 and i * self.gan_slice < self.gan_rounds else None

    def reply(self, clients):
        return [self.train_gan(client) for client in clients]

    def train_gan(self, client) -> Upload:
        """One pass's steps; after the last the client's part of the pool, and the GAN is gone."""
        real = client.x if client.unlabelled is None else torch.cat([client.x, client.unlabelled])
        if self.gan_samples is not None:
            rows = client.stream(f"{self.name}/samples").permutation(len(real))[: self.gan_samples]
            real = real[torch.from_numpy(rows).to(real.device)]
        pixels, privacy = client.pixels(real), self.privacy(len(real))
        seed = int(client.stream(f"{self.name}/init").integers(2**63))
        gan = Gan(self, real.shape[1:], 0, real.device, client.state[self.name], seed)
        total = self.gan_rounds * self.gan_steps
        steps = min(self.gan_slice * self.gan_steps, total - gan.done)
        none = pixels.new_empty(len(real), 0)
        gan.train(to_unit(pixels), none, steps, client.stream(f"{self.name}/gan/{gan.done}"), privacy)
        if gan.done < total:
            client.state[self.name] = gan.state()
            return Upload()
        client.state[self.name] = {}
        first, last = (self.pool * k // client.config.clients for k in (client.id, client.id + 1))
        made = gan.sample(pixels.new_empty(last - first, 0), client.stream(f"{self.name}/pool"))
        return Upload(rows={"images": client.scale.from_unit(made)}, metadata=self.privacy_facts(privacy))

    def receive(self, server, replies):
        if not replies.each:
            return  # GANs in the making
        images = np.concatenate([sent["images"] for _, sent in replies.each])
        owners = np.concatenate([np.full(len(sent["images"]), client) for client, sent in replies.each])
        unlabelled = np.full(len(images), UNLABELLED, np.int16)
        server.share(self.name, make_table(images, unlabelled, owners, np.full(len(images), server.t)))
        server.state[self.name]["labels"] = to_device(unlabelled, server.device)
        self.note_privacy(server, [sent for _, sent in replies.each])
