"""ResNet-18 from torchvision, with batch-norm or group-norm.

Images up to 64 pixels get the CIFAR stem (3×3, stride 1, no max-pool), larger ones torchvision's own.

With batch-norm, the running mean and variance are floating buffers and are averaged like parameters, with the clients'
weights; `num_batches_tracked` is an integer and keeps the server's value. A batch of one sample is normalised by itself
(torch refuses it if the feature map is 1×1), so choose a batch size that leaves no such batch. Group-norm has no
buffers and treats every sample by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from raysim.data.torchvision_import import import_torchvision
from raysim.models.classifiers.base import Model, Shape

if TYPE_CHECKING:
    from torch import nn

    from raysim.models.classifier import Classifier

CIFAR_STEM_UP_TO = 64  # pixels


def resnet18(shape: Shape, classes: int) -> Classifier:
    """Build a ResNet-18 with batch-norm."""
    return _resnet18(shape, classes, None)


def resnet18_gn(shape: Shape, classes: int) -> Classifier:
    """Build a ResNet-18 with group-norm."""
    from torch import nn

    return _resnet18(shape, classes, partial(nn.GroupNorm, 32))  # 32 divides its widths: 64, 128, 256, 512


def _resnet18(shape: Shape, classes: int, norm: Callable[[int], nn.Module] | None) -> Classifier:
    from torch import nn

    from raysim.models.classifier import Classifier
    from raysim.models.convolution import deep

    channels, *sides = shape
    net = import_torchvision().models.resnet18(norm_layer=norm)
    if max(sides) <= CIFAR_STEM_UP_TO:
        net.conv1 = _first_layer(channels, 3, stride=1, padding=1)
        net.maxpool = nn.Identity()
    elif channels != 3:
        net.conv1 = _first_layer(channels, 7, stride=2, padding=3)
    for path, layer in list(net.layer4.named_modules()):
        if isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3):
            owner, _, leaf = path.rpartition(".")
            setattr(net.layer4.get_submodule(owner), leaf, deep(layer))
    feature_size = net.fc.in_features
    net.fc = nn.Identity()  # the head is a layer of its own, as in every classifier
    return Classifier(net, feature_size, classes)


def _first_layer(channels: int, size: int, stride: int, padding: int) -> nn.Conv2d:
    """Return a first convolution, initialised as torchvision initialises its own."""
    from torch import nn

    layer = nn.Conv2d(channels, 64, size, stride, padding, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


MODELS = {
    "resnet18": Model(resnet18, 8, "ResNet-18 with batch-norm; 3×3 stem up to 64 pixels"),
    "resnet18-gn": Model(resnet18_gn, 8, "ResNet-18 with group-norm (32 groups); 3×3 stem up to 64 pixels"),
}
