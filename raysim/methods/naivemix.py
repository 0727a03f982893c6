"""NaiveMix (Yoon et al., 2021): local images are mixed with means of images that clients share."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from raysim.data.synthetic_tables import extended, gathered
from raysim.methods.base import Part, Upload
from raysim.privacy.psnr import psnr
from raysim.settings import setting

if TYPE_CHECKING:
    from raysim.training.client import Client


@dataclass(frozen=True)
class NaiveMix(Part):
    """NaiveMix: mixup with means of M images and of their labels, which all clients share before the first round."""

    replies_with_model = False  # means are of pixels

    mean_of: int = setting(2, "samples in each shared mean (M)", minimum=2)
    ratio: float = setting(
        0.1, "weight of the shared mean in a mixture; 0: no means are shared (λ)", minimum=0, maximum=1
    )

    one_class: bool = setting(False, "make every shared mean of samples of one class, as in HFMDS-FL's comparison")

    # -- before the first round --------------------------------------------------------------------------------------

    def exchange(self, server, t, i):
        return "all" if self.ratio and t == 1 and i == 0 else None

    def reply(self, clients):
        return [self.means(client) for client in clients]

    def means(self, client: "Client") -> Upload:
        """Return the client's upload: means of M samples each.

        A rest of fewer than M samples is left out, as its mean would reveal more.
        """
        drawn = client.stream(f"{self.name}/rows").permutation(client.samples)
        of = client.y.cpu().numpy()[drawn]
        groups = [drawn[of == c] for c in range(client.classes)] if self.one_class else [drawn]
        drawn = np.concatenate([group[: len(group) // self.mean_of * self.mean_of] for group in groups])
        if not len(drawn):
            return Upload()
        rows, count = torch.from_numpy(drawn).to(client.y.device), len(drawn) // self.mean_of
        images, labels = client.x[rows], F.one_hot(client.y[rows], client.classes).float()
        x, y = (values.unflatten(0, (count, self.mean_of)).mean(1) for values in (images, labels))
        similar = psnr(client.pixels(x).repeat_interleave(self.mean_of, 0), client.pixels(images))
        return Upload(rows={"images": x, "labels": y}, metadata={"psnr": similar})

    def receive(self, server, replies):
        server.metrics[f"{self.name}.means"] = sum(len(each["labels"]) for _, each in replies.each)
        if replies.each:  # otherwise every client was skipped, or has fewer than M samples
            server.share(self.name, extended(None, gathered(replies.each, server.t)))
            similar = np.concatenate([each["psnr"] for _, each in replies.each])
            server.metrics["psnr"] = server.metrics[f"{self.name}.psnr"] = float(similar.mean(dtype=np.float64))

    # -- local training ----------------------------------------------------------------------------------------------

    def begin(self, client):
        shared, draw = client.shared.get(self.name), client.stream(f"{self.name}/batches")
        client.scratch[self.name] = {}
        if shared is not None:
            rows = [draw.integers(len(shared), size=size) for size in client.largest_batches]
            client.scratch[self.name]["drawn"] = shared.batches(rows)

    def batch(self, client, x, y):
        if client.shared.get(self.name) is None:
            return x, y
        mean_x, mean_y = next(client.scratch[self.name]["drawn"])
        return self.mix(client, x, y, mean_x[: len(y)], mean_y[: len(y)])

    def mix(self, client: "Client", x: Tensor, y: Tensor, mean_x: Tensor, mean_y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the batch with every sample mixed with one shared mean."""
        y = F.one_hot(y, client.classes).float() if y.ndim == 1 else y
        return (1 - self.ratio) * x + self.ratio * mean_x, (1 - self.ratio) * y + self.ratio * mean_y
