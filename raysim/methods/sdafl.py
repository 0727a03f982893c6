"""SDA-FL (Federated learning with GAN-based data synthesis for non-IID clients): mixup with GAN images."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from raysim.data.synthetic_tables import column, images_of
from raysim.methods.base import Upload
from raysim.methods.common.client_gans import ClientGans
from raysim.methods.common.pseudo_labels import UNLABELLED, draw_rows, mixed, predictions, pseudo_labels, soft
from raysim.settings import setting
from raysim.tensors import to_device, to_host, upload_all
from raysim.training.client import Client, make_optimizer
from raysim.training.fused import cross_entropies, pad
from raysim.training.shared_images import SharedImages

if TYPE_CHECKING:
    import pyarrow as pa

    from raysim.engine.server import Server


@dataclass(frozen=True)
class SDAFL(ClientGans):
    """SDA-FL: mixup with images from every client's own GAN, under pseudo-labels that are revised every round."""

    adds_samples = True

    threshold: float = setting(0.95, "probability above which a pseudo-label is used (τ)", minimum=0, maximum=1)
    forget: bool = setting(
        False, "drop a pseudo-label once its client's model is unsure; otherwise it stays until revised"
    )
    label_rounds: int | None = setting(
        None, "number of rounds, from the first, that revise pseudo-labels; none: all", minimum=1
    )
    lambda_real: float = setting(1.0, "weight of the real images' cross-entropy (λ2, eq. 6)", minimum=0)
    beta: float = setting(1.0, "parameter of the mixture's λ1 ~ Beta(β, β) (eq. 3)", above=0)
    server_steps: int = setting(50, "steps of the global model on synthetic images after each round", minimum=0)
    server_batch: int = setting(
        64, "synthetic images per server step, whose halves are mixed with each other", minimum=2
    )

    # -- at the server, after averaging ----------------------------------------------------------------------------

    def broadcast(self, server):
        return {key: value for key, value in server.state[self.name].items() if key == "labels"}

    def update(self, server, uploads):
        """Store the pseudo-labels that clients gave their own images, then train on the images that have one."""
        table, labels = server.shared.get(self.name), server.state[self.name].get("labels")
        if table is None:
            return
        for client, each in uploads.each:
            upload, rows = to_device(each, labels.device), own(table, client)
            labels[rows] = self.revised(labels[rows], upload["labels"], upload["confidence"])
        rows = np.flatnonzero(to_host(labels) != UNLABELLED)
        server.metrics[f"{self.name}.labelled"] = len(rows) / len(labels)
        if self.server_steps and len(rows):
            server.weights = [self.trained(server, weights, table, rows, labels) for weights in server.weights]
        if server.t == server.config.rounds:  # so that the dataset is saved with its labels
            at = table.column_names.index("label")
            table = table.set_column(at, "label", [to_host(labels).astype(np.int64)])
            server.share(self.name, table, bytes_each=0)

    def revised(self, before: Tensor | None, labels: Tensor, confidence: Tensor) -> Tensor:
        """Return the pseudo-labels by new predictions.

        Where these are unsure, the labels of before stay, unless labels are forgotten.
        """
        found = pseudo_labels(labels, confidence, self.threshold).to(torch.int16)
        return found if self.forget or before is None else torch.where(found != UNLABELLED, found, before)

    def trained(
        self, server: "Server", weights: np.ndarray, table: "pa.Table", rows: np.ndarray, labels: Tensor
    ) -> np.ndarray:
        """Return a global model's weights after steps on mixtures of the two halves of synthetic batches."""
        model, draw = server.model, server.stream(f"{self.name}/steps")
        model.load(torch.from_numpy(weights))
        module = model.module.train()
        optimizer = make_optimizer(model.parameters, server.config, server.t)
        drawn, shares = [], []
        for _ in range(self.server_steps):
            drawn.append(draw_rows(rows, draw, self.server_batch // 2 * 2))
            shares.append(draw.beta(self.beta, self.beta))
        images = SharedImages(table, model.device, fits=False).batches(drawn)
        for (x, _), at, share in zip(images, upload_all(drawn, model.device), shares, strict=True):
            first, second = zip(x.chunk(2), labels[at].long().chunk(2), strict=True)
            mixed_x, mixed_y = mixed(second, first, share, module.head.out_features)
            loss = F.cross_entropy(module(mixed_x), mixed_y)
            if self.lambda_real:
                loss = loss + self.lambda_real * F.cross_entropy(module(first[0]), first[1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        module.eval()
        return to_host(model.weights).copy()

    # -- local training --------------------------------------------------------------------------------------------

    def begin(self, client):
        labels = client.broadcast[self.name].get("labels")
        rows = np.flatnonzero(to_host(labels) != UNLABELLED) if labels is not None else np.empty(0, np.int64)
        own_labels = client.state[self.name].get("unlabelled")
        own_rows = np.flatnonzero(to_host(own_labels) != UNLABELLED) if own_labels is not None else rows[:0]
        scratch = client.scratch[self.name] = {"labels": labels, "own": own_labels, "mixes": bool(len(rows))}
        draw, own, synthetic, shares = client.stream(f"{self.name}/batches"), [], [], []
        for size in client.batch_sizes:
            own.append(draw_rows(own_rows, draw, client.config.unlabelled_batch) if len(own_rows) else own_rows)
            if len(rows):
                synthetic.append(draw_rows(rows, draw, size + len(own[-1])))
                shares.append(draw.beta(self.beta, self.beta))
        scratch["added"] = iter(upload_all(own, client.y.device))
        if len(rows):
            images = client.shared[self.name].batches(synthetic)
            scratch["drawn"] = zip(images, upload_all(synthetic, client.y.device), shares, strict=True)

    def batch(self, client, x, y):
        """Return the batch with pseudo-labelled images of the client added, mixed with synthetic ones where λ2 is 0."""
        scratch = client.scratch[self.name]
        drawn = next(scratch["added"])
        if len(drawn):
            added = scratch["own"][drawn].long()
            y = torch.cat([y, added if y.ndim == 1 else soft(added, client.classes)])
            x = torch.cat([x, client.unlabelled[drawn]])
        scratch["batch"] = x, y
        return (x, y) if self.lambda_real or not scratch["mixes"] else self.mixture(client)

    def ce_weight(self, client):
        return self.lambda_real if self.lambda_real and client.scratch[self.name]["mixes"] else 1.0

    def loss(self, client, step):
        if not self.lambda_real or not client.scratch[self.name]["mixes"]:
            return None
        x, y = self.mixture(client)
        return F.cross_entropy(client.model.module(x), y)

    def fused_loss(self, clients, step):
        if not self.lambda_real or not clients[0].scratch[self.name]["mixes"]:  # as at all clients
            return None
        x, y, share = pad([self.mixture(client) for client in clients])
        return cross_entropies(step.model.head(step.model.features(x, share)), y, share)

    def mixture(self, client: Client) -> tuple[Tensor, Tensor]:
        """Return the mixture of λ1 of a synthetic batch and 1 − λ1 of the real one (eq. 3)."""
        scratch = client.scratch[self.name]
        (images, _), rows, share = next(scratch["drawn"])
        return mixed((images, scratch["labels"][rows].long()), scratch["batch"], share, client.classes)

    def end(self, client):
        """Pseudo-label the client's unlabelled images and its own part of the pool by the model just trained."""
        shared, size = client.shared.get(self.name), client.config.eval_batch
        if self.label_rounds is not None and client.t > self.label_rounds:
            return None
        if client.unlabelled is not None and len(client.unlabelled):
            before = client.state[self.name].get("unlabelled")
            found = predictions(client.model.module, client.unlabelled, size)
            client.state[self.name] = {"unlabelled": self.revised(before, *found)}
        if shared is None:
            return None
        images = to_device(images_of(shared.table)[own(shared.table, client.id)], client.y.device)
        labels, confidence = predictions(client.model.module, images, size)
        return Upload(rows={"labels": labels.to(torch.int16), "confidence": confidence})


def own(table: "pa.Table", client: int) -> slice:
    """Return the rows of a shared dataset that one client made, which are adjacent: rows are in order of clients."""
    return slice(*np.searchsorted(column(table, "client"), [client, client + 1]))
