"""Membership attacks at the end of a run, on the model and on shared data: was an image among the training images?

Members are training images and others held-out test images, equally many of every class, so that an attack gains
nothing by telling classes apart. The distance of two images is the root mean square difference of their pixels in
[0, 1]; PSNR is −20·log10 of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from raysim.data.federated import Chunks, FederatedData
from raysim.data.object_store import fetch
from raysim.data.synthetic_tables import column, images_of
from raysim.privacy.figures import TOO_FEW, Figure, attack_figures, mean_of_groups
from raysim.privacy.psnr import LEAST
from raysim.rng import stream
from raysim.tensors import to_device

if TYPE_CHECKING:
    import pyarrow as pa

    from raysim.config import RunConfig

BLOCK_BYTES = 2**25  # bytes of images on the device at once

Compute = Callable[[np.ndarray, np.ndarray], torch.Tensor]  # (images, labels) -> a row per image


@dataclass(frozen=True)
class Rows:
    """The samples of some items (clients or test batches): their places in the object store, and their labels."""

    chunks: Chunks
    chunk: np.ndarray
    row: np.ndarray
    labels: np.ndarray

    @staticmethod
    def of(chunks: Chunks, items: Iterable[int]) -> Rows:
        """Return the samples of these items."""
        items = np.asarray(list(items), dtype=np.int64)
        spans = [np.arange(start, stop) for start, stop in zip(chunks.start[items], chunks.stop[items], strict=True)]
        chunk, row = np.repeat(chunks.chunk[items], [len(span) for span in spans]), np.concatenate(spans)
        labels = np.empty(len(row), dtype=np.int64)
        for i in np.unique(chunk):
            labels[chunk == i] = fetch(chunks.objects[i])[1][row[chunk == i]]
        return Rows(chunks, chunk, row, labels)

    def images(self, chosen: np.ndarray) -> np.ndarray:
        """Return the images of the chosen samples, as uint8."""
        chunk, row = self.chunk[chosen], self.row[chosen]
        first = fetch(self.chunks.objects[0])[0]
        images = np.empty((len(chosen), *first.shape[1:]), dtype=np.uint8)
        for i in np.unique(chunk):
            images[chunk == i] = fetch(self.chunks.objects[i])[0][row[chunk == i]]
        return images


def matched(
    members: np.ndarray, others: np.ndarray, count: int, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw indices into two arrays of labels, about `count` into each, equally many of every class in both."""
    both = np.intersect1d(members, others)
    chosen = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for label in both:
        found = [np.flatnonzero(labels == label) for labels in (members, others)]
        size = min(max(1, count // len(both)), *map(len, found))
        for drawn, indices in zip(chosen, found, strict=True):
            drawn.append(draw.permutation(indices)[:size])
    return np.concatenate(chosen[0]), np.concatenate(chosen[1])


def nearest(points: torch.Tensor, blocks: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the root mean square distance of each point to the nearest item of all blocks, by rows."""
    best = torch.full((len(points),), torch.inf, device=points.device)
    for items in blocks:
        # ‖p − i‖² without its term ‖p‖² finds the nearest item; the distance is then computed without cancellation.
        at = (items.square().sum(1) - 2 * points @ items.T).argmin(1)
        best = torch.minimum(best, (points - items[at]).square().mean(1).sqrt())
    return best


class Attacks:
    """The attacks on one run after its round t."""

    def __init__(self, config: RunConfig, data: FederatedData, device: torch.device, t: int):
        self.config, self.data, self.device, self.t = config, data, device, t
        self.normalisation = data.normalisation.on(device)
        self.held_out = Rows.of(data.test, range(len(data.test)))
        # The global model is none to attack with where something it needs, as of batch-norm, stays at the clients.
        alone = next((part.name for part in config.parts if part.predicts_with_personal), None)
        self.refusal = alone and f"not attacked: {alone} keeps what it predicts with at the clients"

    def candidates(self, clients: list[int], draw: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return images and labels of these clients' training data, and of as many held-out images of every class."""
        training = Rows.of(self.data.clients, clients)
        chosen = matched(training.labels, self.held_out.labels, self.config.privacy, draw)
        pools = zip((training, self.held_out), chosen, strict=True)
        return [(rows.images(indices), rows.labels[indices]) for rows, indices in pools]

    def on_model(self, clients: list[int], losses: Compute) -> list[Figure]:
        """Attack the model: take images with a low loss for members (Yeom et al., 2018), and return the figures."""
        if self.refusal:
            return [Figure("model.auc", None, note=self.refusal)]
        members, others = self.candidates(clients, self._draw("model"))
        scores = [-losses(*images).cpu().numpy() if len(images[1]) else np.empty(0) for images in (members, others)]
        note = f"loss of {len(members[1])} training and {len(others[1])} held-out images of the same classes"
        return attack_figures("model", scores[0], scores[1], note)

    def on_images(self, name: str, table: pa.Table, trained: list[int]) -> list[Figure]:
        """Attack shared images: take images near one for members; return the figures and the distances."""
        draw = self._draw(name)
        sources = np.unique(column(table, "client"))
        clients = trained if sources[0] < 0 else sources.tolist()  # below 0: made by the server
        members, others = self.candidates(clients, draw)
        scores = [-self._nearest(x, images_of(table)) for x, _ in (members, others)]
        note = (
            f"distance of {len(members[1])} training and {len(others[1])} held-out images of the same classes to the "
            f"nearest of {table.num_rows} shared ones"
        )
        return attack_figures(name, scores[0], scores[1], note) + self.distances(name, table, trained, draw)

    def distances(self, name: str, table: pa.Table, trained: list[int], draw: np.random.Generator) -> list[Figure]:
        """Return the distances of shared images to the nearest training image of their client and held-out image.

        There are as many held-out images, of the same classes: among more of them, the nearest would be nearer.
        """
        chosen = np.sort(draw.permutation(table.num_rows)[: self.config.privacy])
        sources, found, used = column(table, "client")[chosen], [], []
        for source in np.unique(sources):
            rows = chosen[sources == source]
            clients = trained if source < 0 else [int(source)]
            references = self.candidates(clients, draw)
            used.append(len(references[0][1]) / self.data.sizes[clients].sum())
            if len(references[0][1]):
                found.append(np.stack([self._nearest(images_of(table)[rows], x) for x, _ in references], 1))
        if not found:
            return [Figure(f"{name}.nearer_to_training", None, note=f"{TOO_FEW} (no held-out images of these classes)")]
        training, held_out = ([pair[:, i] for pair in found] for i in (0, 1))
        nearer = [0.5 + 0.5 * np.sign(other - own) for own, other in zip(training, held_out, strict=True)]
        similar = [-20 * np.log10(own.clip(min=LEAST)) for own in training]
        shared = f"from {sum(map(len, found))} shared images to the nearest"
        share, interval = mean_of_groups(nearer)
        return [
            Figure(
                f"{name}.nearest_training", *mean_of_groups(training),
                f"root mean square distance of pixels in [0, 1], {shared} of {np.mean(used):.0%} of the training "
                "images of the client that made them",
            ),
            Figure(
                f"{name}.nearest_held_out", *mean_of_groups(held_out),
                f"the same distance {shared} of as many test images of the same classes",
            ),
            Figure(
                f"{name}.nearer_to_training", share, interval and (max(interval[0], 0.0), min(interval[1], 1.0)),
                "share of the shared images that are nearer to training than to held-out images; by chance one half",
            ),
            Figure(
                f"{name}.psnr_nearest", *mean_of_groups(similar),
                "PSNR in dB, at most 54, to the nearest training image, which need not be the one it was made from",
            ),
        ]  # fmt: skip

    def on_means(
        self, name: str, vectors: torch.Tensor, classes: np.ndarray, clients: list[int], features: Compute
    ) -> list[Figure]:
        """Attack shared means: take samples with features near their class's vector for members."""
        if self.refusal:  # features by the clients' own models would each be in a space of their own
            return [Figure(f"{name}.auc", None, note=self.refusal)]
        candidates, scores = self.candidates(clients, self._draw(name)), []
        for x, y in candidates:
            known = np.isin(y, classes)
            x, y, score = x[known], y[known], np.empty(known.sum())
            points = features(x, y) if len(y) else vectors[:0]
            means = vectors[:, : points.shape[1]]
            for label in np.unique(y):
                at = np.flatnonzero(y == label)
                score[at] = -nearest(points[at], [means[np.flatnonzero(classes == label)]]).cpu().numpy()
            scores.append(score)
        note = (
            f"distance of the final model's features of {len(scores[0])} training and {len(scores[1])} held-out images "
            f"to the nearest one of their class among {len(classes)} shared vectors"
        )
        return attack_figures(name, scores[0], scores[1], note)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _draw(self, name: str) -> np.random.Generator:
        return stream(self.config.seed, f"privacy/{name}", self.t)

    def _nearest(self, points: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Return the distance of each image to the nearest of `items`; blocks depend on the size of an image alone."""
        size = max(1, BLOCK_BYTES // (4 * math.prod(self.data.shape)))
        found = [np.empty(0)]
        for start in range(0, len(points), size):
            blocks = (self._pixels(items[i : i + size]) for i in range(0, len(items), size))
            found.append(nearest(self._pixels(points[start : start + size]), blocks).double().cpu().numpy())
        return np.concatenate(found)

    def _pixels(self, x: np.ndarray) -> torch.Tensor:
        """Return images as rows of pixels in [0, 1].

        Shared images, which are normalised, are cut to this range, as for PSNR.
        """
        images: torch.Tensor = to_device(x, self.device)
        if images.dtype == torch.uint8:
            return images.flatten(1).float() / 255
        return self.normalisation.to_pixels(images).flatten(1)
