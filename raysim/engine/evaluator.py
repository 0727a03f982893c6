"""What a client actor does with a model that is not trained: predict the test images, take features to look at."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as F

from raysim.data.synthetic_tables import column
from raysim.engine.messages import LOSS_BITS, Broadcast
from raysim.methods.base import overrides
from raysim.privacy.attacks import Attacks
from raysim.privacy.figures import Figure
from raysim.rng import stream
from raysim.tensors import to_device, to_host
from raysim.training.client import initial_model, shared_rows


class Evaluation:
    """The half of engine/worker.py's Worker that only reads."""

    def initial(self, *_) -> np.ndarray:
        """The weights the run starts from. The server has no model of its own unless a part needs one there."""
        return to_host(initial_model(self.federation, self.device).weights)

    def export(self, broadcast: Broadcast, _) -> list[dict[str, np.ndarray]]:
        """The global models by parameter name."""
        self._hold(broadcast)
        model = initial_model(self.federation, self.device)  # integer buffers have moved in the one that trains
        return [model.export(weights) for weights in self.weights]

    @torch.no_grad()
    def evaluate(
        self, broadcast: Broadcast, groups: list[list[int]], states: dict[int, object] | None = None
    ) -> tuple[int, int | None]:
        """Correct predictions and summed loss (in units of 2^-20; None if not finite) over these test batches.

        With `states`, batch k is client k's and predicted by its own model.
        """
        self._hold(broadcast)
        mask = None if states is None else self.model.personal_mask(self.config.parts, broadcast.t)
        predict = self._predict()
        correct, loss = 0, 0
        for batch in (b for group in groups for b in group):
            if states is not None:
                self._load(self.weights[0], mask, self._state(batch, states))
            x, y = self._to_batch(*self.federation.test.read(batch))
            logits = predict(x)
            correct += int((logits.argmax(1) == y).sum())
            batch_loss = F.cross_entropy(logits, y, reduction="sum").item()
            finite = loss is not None and math.isfinite(batch_loss)
            loss = loss + round(batch_loss * 2.0**LOSS_BITS) if finite else None
        return correct, loss

    @torch.no_grad()
    def sample_features(self, broadcast: Broadcast, groups: list[list[int]], states: dict[int, object], count: int):
        """Kind -> features and labels: of test images by the models evaluated, of what is shared by the global one."""
        self._hold(broadcast)
        mask = self.model.personal_mask(self.config.parts, broadcast.t)
        each = -(-count // sum(map(len, groups)))  # of every test batch
        real = []
        for item in (i for group in groups for i in group):
            self._load(self.weights[0], mask, self._state(item, states))
            x, y = self._to_batch(*(rows[:each] for rows in self.federation.test.read(item)))
            real.append((self.model.module.features(x), y))
        kinds = {"real": tuple(torch.cat(column) for column in zip(*real, strict=True))}
        self.model.load(self.weights[0])
        for name, table in self.shared.items():
            labelled = np.flatnonzero(column(table, "label") >= 0)  # pseudo-labels may be missing
            rows = stream(self.config.seed, "features", broadcast.t).permutation(labelled)[:count]
            if len(rows):
                x, y = shared_rows(table, rows, self.device)
                kinds[f"synthetic ({name})"] = self.model.module.features(x), y.argmax(1) if y.ndim == 2 else y
        return to_host(kinds)

    @torch.no_grad()
    def attack(
        self, broadcast: Broadcast, _, means: dict[str, tuple], trained: list[int], last: list[int]
    ) -> list[Figure]:
        """How much the global model and what is shared tell of the training data of clients that took part.

        `means`: part -> vectors in the space of features that all clients have, and their classes, made from the data
        of the `last` active clients.
        """
        self._hold(broadcast)
        attacks = Attacks(self.federation, self.device, broadcast.t)
        figures = attacks.on_model(trained, self._losses)
        for name, table in self.shared.items():
            figures += attacks.on_images(name, table, trained)
        for name, (vectors, labels) in means.items():
            figures += attacks.on_means(name, to_device(vectors, self.device), labels, last, self._features)
        return figures

    def _losses(self, x: np.ndarray, y: np.ndarray) -> torch.Tensor:
        """Cross-entropy of every sample by the global models; in double precision, so that few are equal."""
        predict = self._predict()
        return self._in_batches(lambda x, y: F.cross_entropy(predict(x).double(), y, reduction="none"), x, y)

    def _features(self, x: np.ndarray, y: np.ndarray) -> torch.Tensor:
        self.model.load(self.weights[0])
        return self._in_batches(lambda x, _: self.model.module.features(x), x, y)

    def _in_batches(self, compute, x: np.ndarray, y: np.ndarray) -> torch.Tensor:
        size = self.config.eval_batch
        return torch.cat([compute(*self._to_batch(x[i : i + size], y[i : i + size])) for i in range(0, len(y), size)])

    def _predict(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Logits by the global models, or by what is loaded in place of the first."""
        predictor = next((p for p in self.config.parts if overrides(p, "predict")), None)
        self.model.load(self.weights[0])
        everyone = [self._predictor(i) for i in range(len(self.weights))]
        return lambda x: predictor.predict(everyone, x) if predictor else self.model.module(x)

    def _predictor(self, index: int):
        def predict(x: torch.Tensor) -> torch.Tensor:
            self.model.load(self.weights[index])
            return self.model.module(x)

        return predict
