"""What every classifier consists of: a feature extractor e and a linear head d, f = d ∘ e."""

from torch import Tensor, nn


class Classifier(nn.Module):
    """`features(x)` is z [batch, feature_size], `head(z)` the logits, `forward(x) = head(features(x))`.

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

    def maps(self, x: Tensor) -> Tensor:
        """The flattened output of the convolutions."""
        return self._layers(slice(self.map_layers))(x)

    def features_of(self, maps: Tensor) -> Tensor:
        """The features that follow from `maps(x)`."""
        return self._layers(slice(self.map_layers, None))(maps)

    def _layers(self, which: slice) -> nn.Module:
        if self.map_layers is None or not isinstance(self.extractor, nn.Sequential):
            raise ValueError("this classifier has no convolution maps")
        return self.extractor[which]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))
