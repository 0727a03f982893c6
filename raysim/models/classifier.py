"""What every classifier consists of: a feature extractor e and a linear head d, f = d ∘ e."""

from torch import Tensor, nn


class Classifier(nn.Module):
    """`features(x)` is z [batch, feature_size], `head(z)` the logits, `forward(x) = head(features(x))`."""

    def __init__(self, extractor: nn.Module, feature_size: int, classes: int):
        super().__init__()
        self.feature_size = feature_size
        self.extractor = extractor
        self.head = nn.Linear(feature_size, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.extractor(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))
