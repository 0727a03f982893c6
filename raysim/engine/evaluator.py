"""What a client actor does with models that are not being trained: predict, take features to draw, attack."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as F

from raysim.data.synthetic_tables import column
from raysim.engine.hosted_model import HostedModel
from raysim.engine.messages import LOSS_BITS, Broadcast, States
from raysim.engine.runner import LabelledFeatures
from raysim.engine.work_queue import Group
from raysim.measures import shared_images
from raysim.privacy.attacks import Attacks
from raysim.privacy.figures import Figure
from raysim.rng import stream
from raysim.tensors import to_device, to_host

Compute = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of images and labels, a row each


class Evaluator:
    """Evaluates the global models, or the clients' own, with a hosted model."""

    def __init__(self, hosted: HostedModel):
        self.hosted, self.config = hosted, hosted.config

    @torch.no_grad()
    def evaluate(self, broadcast: Broadcast, groups: list[Group], states: States | None) -> tuple[int, int | None]:
        """Correct predictions and summed loss (in units of 2^-20; None if not finite) over these test batches.

        With `states`, batch k belongs to client k and is predicted by its own model.
        """
        hosted = self.hosted
        hosted.hold(broadcast)
        mask = None if states is None else hosted.personal_mask()
        kept = hosted.read_states(states or {})
        predict = self._predict()
        correct: list[torch.Tensor] = []
        losses: list[torch.Tensor] = []
        for batch in (b for group in groups for b in group):
            if states is not None:
                hosted.load(hosted.weights[0], mask, hosted.state_of(batch, kept))
            x, y = hosted.to_batch(*hosted.data.test.read(batch))
            logits = predict(x)
            correct.append((logits.argmax(1) == y).sum())
            losses.append(F.cross_entropy(logits, y, reduction="sum"))
        found: list[float] = torch.stack(losses).tolist()  # only now: the host waits for the device once
        whole = sum(round(loss * 2.0**LOSS_BITS) for loss in found) if all(map(math.isfinite, found)) else None
        return sum(torch.stack(correct).tolist()), whole

    @torch.no_grad()
    def sample_features(
        self, broadcast: Broadcast, groups: list[Group], states: States, count: int
    ) -> LabelledFeatures:
        """Features and labels of test images, by the models evaluated, and of shared images, by the global model."""
        hosted = self.hosted
        hosted.hold(broadcast)
        mask, module, kept = hosted.personal_mask(), hosted.model.module, hosted.read_states(states)
        each = -(-count // sum(map(len, groups)))  # of every test batch
        real = []
        for item in (i for group in groups for i in group):
            hosted.load(hosted.weights[0], mask, hosted.state_of(item, kept))
            x, y = hosted.to_batch(*(rows[:each] for rows in hosted.data.test.read(item)))
            real.append((module.features(x), y))
        kinds = {"real": tuple(torch.cat(rows) for rows in zip(*real, strict=True))}
        hosted.model.load(hosted.weights[0])
        for name, shared in hosted.shared.items():
            labelled = np.flatnonzero(column(shared.table, "label") >= 0)  # pseudo-labels may be missing
            rows = stream(self.config.seed, "features", broadcast.t).permutation(labelled)[:count]
            if len(rows):
                x, y = shared.rows(rows)
                kinds[f"synthetic ({name})"] = module.features(x), y.argmax(1) if y.ndim == 2 else y
        return to_host(kinds)

    @torch.no_grad()
    def attack(
        self, broadcast: Broadcast, means: dict[str, tuple[np.ndarray, np.ndarray]], trained: list[int], last: list[int]
    ) -> list[Figure]:
        """How much the global model and what is shared reveal of the training data of the clients that took part.

        `means`: part -> vectors in the space of features that all clients have, and their classes, made from the data
        of the `last` active clients.
        """
        hosted = self.hosted
        hosted.hold(broadcast)
        attacks = Attacks(self.config, hosted.data, hosted.device, broadcast.t)
        figures = attacks.on_model(trained, self._losses)
        for name, shared in hosted.shared.items():
            figures += attacks.on_images(name, shared.table, trained)
        for name, (vectors, labels) in means.items():
            figures += attacks.on_means(name, to_device(vectors, hosted.device), labels, last, self._features)
        return figures

    @torch.no_grad()
    def compare_images(self, broadcast: Broadcast, trained: list[int]) -> list[Figure]:
        """How the features of shared images, and of these clients' training images, are beside held-out images'."""
        hosted = self.hosted
        hosted.hold(broadcast)
        hosted.model.load(hosted.weights[0])
        tables = {name: shared.table for name, shared in hosted.shared.items()}
        return shared_images.compare_images(
            self.config, hosted.data, tables, trained, broadcast.t, self._features_of_images
        )

    def _losses(self, x: np.ndarray, y: np.ndarray) -> torch.Tensor:
        """Cross-entropy of every sample by the global models; in double precision, so that few are equal."""
        predict = self._predict()
        return self._in_batches(lambda x, y: F.cross_entropy(predict(x).double(), y, reduction="none"), x, y)

    def _features(self, x: np.ndarray, y: np.ndarray) -> torch.Tensor:
        self.hosted.model.load(self.hosted.weights[0])
        return self._in_batches(lambda x, _: self.hosted.model.module.features(x), x, y)

    def _features_of_images(self, images: np.ndarray) -> torch.Tensor:
        """Features by the model that is loaded, of pixels or of images that are normalised already."""
        size, found = self.config.eval_batch, []
        for start in range(0, len(images), size):
            x = images[start : start + size]
            if x.dtype == np.uint8:
                batch, _ = self.hosted.to_batch(x, np.zeros(len(x), np.int64))
            else:
                batch = to_device(x, self.hosted.device).contiguous(memory_format=torch.channels_last)
            found.append(self.hosted.model.module.features(batch))
        return torch.cat(found)

    def _in_batches(self, compute: Compute, x: np.ndarray, y: np.ndarray) -> torch.Tensor:
        size, to_batch = self.config.eval_batch, self.hosted.to_batch
        return torch.cat([compute(*to_batch(x[i : i + size], y[i : i + size])) for i in range(0, len(y), size)])

    def _predict(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Logits by the global models, or by what is loaded in place of the first."""
        predictor = next((p for p in self.config.parts if p.overrides("predict")), None)
        self.hosted.model.load(self.hosted.weights[0])
        if predictor is None:
            return self.hosted.model.module
        everyone = [self._global_model(i) for i in range(len(self.hosted.weights))]
        return lambda x: predictor.ask("predict", everyone, x)

    def _global_model(self, index: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def predict(x: torch.Tensor) -> torch.Tensor:
            self.hosted.model.load(self.hosted.weights[index])
            return self.hosted.model.module(x)

        return predict
