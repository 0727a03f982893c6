"""What a client actor does with a model that is not trained: predict the test images, take features to look at."""

import math

import numpy as np
import torch
from torch.nn import functional as F

from raysim.engine.client import initial_model, shared_rows
from raysim.engine.messages import LOSS_BITS, Broadcast
from raysim.engine.tensors import to_host
from raysim.methods.base import overrides
from raysim.rng import stream


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
        predictor = next((p for p in self.config.parts if overrides(p, "predict")), None)
        self.model.load(self.weights[0])
        everyone = [self._predictor(i) for i in range(len(self.weights))]
        correct, loss = 0, 0
        for batch in (b for group in groups for b in group):
            if states is not None:
                self._load(self.weights[0], mask, self._state(batch, states))
            x, y = self._to_batch(*self.federation.test.read(batch))
            logits = predictor.predict(everyone, x) if predictor else self.model.module(x)
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
            rows = stream(self.config.seed, "features", broadcast.t).permutation(table.num_rows)[:count]
            x, y = shared_rows(table, rows, self.device)
            kinds[f"synthetic ({name})"] = self.model.module.features(x), y.argmax(1) if y.ndim == 2 else y
        return to_host(kinds)

    def _predictor(self, index: int):
        def predict(x: torch.Tensor) -> torch.Tensor:
            self.model.load(self.weights[index])
            return self.model.module(x)

        return predict
