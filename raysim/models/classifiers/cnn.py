"""The papers' small convolutional networks, and one multi-layer perceptron for tests.

Pooling comes before the ReLU. Max and ReLU commute, also in the gradients (a window whose maximum is not positive gets
none either way), so the results are bit for bit those of the usual order, and the ReLU has a quarter of the work.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from raysim.models.classifiers.base import Model, Shape

if TYPE_CHECKING:
    from raysim.models.classifier import Classifier


def _five_by_five(shape: Shape, classes: int, first: int, second: int, features: int) -> Classifier:
    """Return two 5×5 convolutions, each with 2×2 pooling, and a linear layer whose ReLU gives the feature."""
    from torch import nn

    from raysim.models.classifier import Classifier
    from raysim.models.convolution import ImageConv2d

    channels, *sides = shape
    height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
    extractor = nn.Sequential(
        ImageConv2d(channels, first, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(first, second, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(second * height * width, features),
        nn.ReLU(),
    )
    return Classifier(extractor, features, classes, maps=7)


def _five_by_five_operations(shape: Shape, first: int, second: int, features: int) -> int:
    """Count the operations of such a network without its head, 2 per multiply-add."""
    channels, *sides = shape
    once, twice = ([(side - 4) // 2 for side in sides], [((side - 4) // 2 - 4) // 2 for side in sides])
    layers = (
        (sides[0] - 4) * (sides[1] - 4) * 25 * channels * first,
        (once[0] - 4) * (once[1] - 4) * 25 * first * second,
        twice[0] * twice[1] * second * features,
    )
    return 2 * sum(layers)


def hfmds_cnn(shape: Shape, classes: int) -> Classifier:
    """Build HFMDS-FL's CNN, which has 1,600 flattened values at 32×32."""
    return _five_by_five(shape, classes, 32, 64, 512)


def small_cnn(shape: Shape, classes: int) -> Classifier:
    """Build the benchmark's small model."""
    return _five_by_five(shape, classes, 6, 16, 32)


def fedpa_cnn(shape: Shape, classes: int) -> Classifier:
    """Build FedPA's CNN for 28×28 images, with 784 flattened values.

    The feature has no activation, since the output of its generator has none.
    """
    from torch import nn

    from raysim.models.classifier import Classifier

    channels, height, width = shape
    halved = -(-height // 4) * -(-width // 4)  # two stride-2 convolutions with padding 1, each rounding up
    extractor = nn.Sequential(
        nn.Conv2d(channels, 6, 3, stride=2, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * halved, 32),
    )
    return Classifier(extractor, 32, classes, maps=7)


def fedpa_celeba_cnn(shape: Shape, classes: int) -> Classifier:
    """Build FedPA's CNN for CelebA's 84×84 images, of which 64 values are left.

    The feature has no activation, as in fedpa_cnn.
    """
    from torch import nn

    from raysim.models.classifier import Classifier

    layers: list[nn.Module] = []
    channels, *sides = shape
    for width in (16, 32, 64):
        layers += [
            nn.Conv2d(channels, width, 3, stride=2, padding=1),
            nn.BatchNorm2d(width),
            nn.MaxPool2d(2),
            nn.ReLU(),
        ]
        channels, sides = width, [(side + 1) // 2 // 2 for side in sides]
    extractor = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * sides[0] * sides[1], 32))
    return Classifier(extractor, 32, classes, maps=len(layers) + 1)


def mlp(shape: Shape, classes: int) -> Classifier:
    """Build a perceptron with one hidden layer of 64 units."""
    from torch import nn

    from raysim.models.classifier import Classifier

    channels, height, width = shape
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 64), nn.ReLU())
    return Classifier(extractor, 64, classes)


def _strided_operations(shape: Shape, widths: tuple[int, ...], pooled: bool) -> int:
    """Count the operations of stride-2 3×3 convolutions of these widths and a linear layer of 32."""
    channels, height, width = shape
    total = 0
    for out in widths:
        height, width = -(-height // 2), -(-width // 2)
        total += height * width * 9 * channels * out
        channels = out
        if pooled:
            height, width = height // 2, width // 2
    return 2 * (total + height * width * channels * 32)


MODELS = {
    "hfmds-cnn": Model(
        hfmds_cnn,
        16,
        "two 5×5 convolutions (32, 64) with max-pool, linear 512; HFMDS-FL, SDA-FL",
        has_maps=True,
        operations=lambda shape: _five_by_five_operations(shape, 32, 64, 512),
    ),
    "fedpa-cnn": Model(
        fedpa_cnn,
        1,
        "two 3×3 stride-2 convolutions (6, 16) with batch-norm, linear 32; FedPA",
        has_maps=True,
        operations=lambda shape: _strided_operations(shape, (6, 16), pooled=False),
    ),
    "fedpa-celeba-cnn": Model(
        fedpa_celeba_cnn,
        43,
        "3×3 stride-2 convolutions (16, 32, 64) with batch-norm and max-pool, linear 32; FedPA on CelebA",
        has_maps=True,
        operations=lambda shape: _strided_operations(shape, (16, 32, 64), pooled=True),
    ),
    "small-cnn": Model(
        small_cnn,
        16,
        "two 5×5 convolutions (6, 16) with max-pool, linear 32; fast",
        has_maps=True,
        operations=lambda shape: _five_by_five_operations(shape, 6, 16, 32),
    ),
    "mlp": Model(mlp, 1, "one hidden layer of 64; for tests", operations=lambda shape: 2 * math.prod(shape) * 64),
}
