"""The declaration of a classifier, which every file of this folder makes in `MODELS`.

The driver lists and checks models without torch, so such a file imports torch only inside its functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raysim.models.classifier import Classifier
    from raysim.models.vae import VaeClassifier

Shape = tuple[int, int, int]  # channels, height, width of an image


@dataclass(frozen=True)
class Model:
    """A classifier's declaration: how to build it, and for which images."""

    make: Callable[[Shape, int], Classifier | VaeClassifier]  # (shape, number of classes)
    smallest: int  # side of the smallest image in pixels
    description: str
    decodes: bool = False  # whether it is also a variational auto-encoder (models/vae.py)
    has_maps: bool = False  # whether it has `maps` and `features_of` (models/classifier.py)
    operations: Callable[[Shape], int] | None = None  # floating-point, of one image's forward pass; None: very many
