"""NaiveMix (Yoon et al., 2021): local images are mixed with means of other clients' images."""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

from raysim.data.synthetic_tables import extended, gathered
from raysim.methods.base import Part, Upload
from raysim.privacy.psnr import psnr
from raysim.settings import setting


@dataclass(frozen=True)
class NaiveMix(Part):
    """NaiveMix: mixup with means of M images and labels, which all clients share before the first round."""

    mean_of: int = setting(2, "samples in each shared mean (M)", minimum=2)
    ratio: float = setting(0.1, "share of the mean in what is trained on; 0: none is shared (λ)", minimum=0, maximum=1)

    # -- before the first round --------------------------------------------------------------------------------------

    def exchange(self, server, t, i):
        return "all" if self.ratio and t == 1 and i == 0 else None

    def reply(self, clients):
        return [self.means(client) for client in clients]

    def means(self, client) -> Upload:
        """Means of M samples each; a rest of fewer stays out, as it would show more of them."""
        count = client.samples // self.mean_of
        if count == 0:
            return Upload()
        rows = client.stream(f"{self.name}/rows").permutation(client.samples)[: count * self.mean_of]
        rows = torch.from_numpy(rows).to(client.y.device)
        images, labels = client.x[rows], F.one_hot(client.y[rows], client.classes).float()
        x, y = (values.unflatten(0, (count, self.mean_of)).mean(1) for values in (images, labels))
        similar = psnr(client.pixels(x).repeat_interleave(self.mean_of, 0), client.pixels(images))
        return Upload(rows={"images": x, "labels": y}, metadata={"psnr": similar})

    def receive(self, server, replies):
        server.metrics[f"{self.name}.means"] = sum(len(each["labels"]) for _, each in replies.each)
        if replies.each:  # else every client was skipped, or has too few samples
            server.share(self.name, extended(None, gathered(replies.each, server.t)))
            similar = np.concatenate([each["psnr"] for _, each in replies.each])
            server.metrics["psnr"] = server.metrics[f"{self.name}.psnr"] = float(similar.mean(dtype=np.float64))

    # -- local training ----------------------------------------------------------------------------------------------

    def begin(self, client):
        client.scratch[self.name] = {"draw": client.stream(f"{self.name}/batches")}

    def batch(self, client, x, y):
        if (table := client.shared.get(self.name)) is None:
            return x, y
        return self.mix(client, x, y, *client.draw_shared(table, client.scratch[self.name]["draw"], len(y)))

    def mix(self, client, x, y, mean_x, mean_y):
        """Each sample with a mean of its own."""
        y = F.one_hot(y, client.classes).float() if y.ndim == 1 else y
        return (1 - self.ratio) * x + self.ratio * mean_x, (1 - self.ratio) * y + self.ratio * mean_y
