"""What every classifier consists of: a feature extractor e and a linear head d, f = d ∘ e."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


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


def classified(module: Any, features: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Features and logits of the samples that have labels, their mean cross-entropy, and the logits of any that follow.

    Without samples that follow the last is left out.
    """
    logits = module.head(features)
    if len(logits) == len(labels):
        return features, logits, F.cross_entropy(logits, labels)
    own, others = logits.split([len(labels), len(logits) - len(labels)])
    return features[: len(labels)], own, F.cross_entropy(own, labels), others
