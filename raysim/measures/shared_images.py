"""Measures of shared images at the end of a run: the distribution of their features beside that of real images.

The features are the final global model's. So the Fréchet distance here is no FID, which takes Inception's, and
figures of runs with different models cannot be compared. What training images get stands beside every figure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch

from raysim.data.synthetic_tables import images_of
from raysim.measures import IMAGE_MEASURES, TRAINING, distributions
from raysim.privacy.attacks import Rows
from raysim.privacy.figures import TOO_FEW, Figure
from raysim.rng import stream

if TYPE_CHECKING:
    import pyarrow as pa

    from raysim.config import RunConfig
    from raysim.data.federated import FederatedData

Features = Callable[[np.ndarray], torch.Tensor]  # images, as pixels (uint8) or normalised (float32) -> a row each


def compare_images(
    config: RunConfig, data: FederatedData, shared: dict[str, pa.Table], trained: list[int], t: int, features: Features
) -> list[Figure]:
    """Measure every shared dataset, and the training images of these clients, beside held-out test images.

    All sets have the same size, on which the Fréchet distance depends: as many as `--measures` asks for, or as the
    smallest has.
    """
    held_out, training = Rows.of(data.test, range(len(data.test))), Rows.of(data.clients, trained)
    smallest = min(len(held_out.labels), len(training.labels), *(table.num_rows for table in shared.values()))
    size = min(config.measures, smallest)
    if size < distributions.FEWEST:
        return [Figure(f"{name}.fd", None, note=f"{TOO_FEW} ({size} images)") for name in shared]

    def drawn(name: str, count: int) -> np.ndarray:
        return np.sort(stream(config.seed, f"measures/{name}", t).permutation(count)[:size])

    def rows(vectors: torch.Tensor) -> torch.Tensor:
        return vectors.flatten(1).double().cpu()

    reference = rows(features(held_out.images(drawn("held out", len(held_out.labels)))))
    sets = {name: images_of(table)[drawn(name, table.num_rows)] for name, table in shared.items()}
    sets[TRAINING] = training.images(drawn(TRAINING, len(training.labels)))
    figures: list[Figure] = []
    for name, images in sets.items():
        what = "training images" if name == TRAINING else "shared images"
        note = f"features of {config.model}: {size:,} {what} beside as many held-out ones"
        figures += _figures(name, reference, rows(features(images)), note)
    return figures


def _figures(name: str, real: torch.Tensor, made: torch.Tensor, note: str) -> list[Figure]:
    if not (torch.isfinite(real).all() and torch.isfinite(made).all()):
        return [Figure(f"{name}.fd", None, note="not measured: the model gives values that are not finite")]
    values = (
        distributions.frechet_distance(real, made),
        distributions.kernel_distance(real, made),
        *distributions.precision_recall(real, made),
        *distributions.density_coverage(real, made),
    )
    return [Figure(f"{name}.{key}", value, note=note) for key, value in zip(IMAGE_MEASURES, values, strict=True)]
