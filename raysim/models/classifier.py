"""The two pieces of every classifier: a feature extractor e and a linear head d, f = d ∘ e."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class Classifier(nn.Module):
    """A network of `features(x)` [batch, feature_size] and a linear `head` that makes them logits.

    A classifier of convolutions and linear layers also has `maps(x)`, the flattened output of its convolutions, and
    `features_of(maps)`; `maps` is then the number of the extractor's layers that give them.
    """

    def __init__(self, extractor: nn.Module, feature_size: int, classes: int, maps: int | None = None):
        super().__init__()
        self.feature_size = feature_size
        self.extractor = extractor
        self.head = nn.Linear(feature_size, classes)
        self.map_layers = maps

    def features(self, x: Tensor) -> Tensor:
        return self.extractor(x)

    @property
    def has_maps(self) -> bool:
        """Whether the classifier has `maps` and `features_of`."""
        return self.map_layers is not None

    def maps(self, x: Tensor) -> Tensor:
        """Return the flattened output of the convolutions."""
        return self._layers(slice(self.map_layers))(x)

    def features_of(self, maps: Tensor) -> Tensor:
        """Return the features that follow from `maps(x)`."""
        return self._layers(slice(self.map_layers, None))(maps)

    def _layers(self, which: slice) -> nn.Module:
        if self.map_layers is None or not isinstance(self.extractor, nn.Sequential):
            raise ValueError("this classifier has no convolution maps")
        return self.extractor[which]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def classified(module: Any, features: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Return features and logits of the labelled samples, their mean cross-entropy, and the other samples' logits.

    The samples behind the last label have no label; without any, their logits are left out.
    """
    logits = module.head(features)
    if len(logits) == len(labels):
        return features, logits, F.cross_entropy(logits, labels)
    own, others = logits.split([len(labels), len(logits) - len(labels)])
    return features[: len(labels)], own, F.cross_entropy(own, labels), others
