"""ResNet-18 from torchvision, with batch-norm or group-norm.

Images up to 64 pixels get the CIFAR stem (3×3, stride 1, no max-pool), larger ones torchvision's own.

The batch-norm rule: the running mean and variance are floating buffers and are averaged like parameters, with the
clients' weights; `num_batches_tracked` is an integer and keeps the server's value. A batch of one sample is normalised
by itself (torch refuses it where the feature map is 1×1): choose a batch size that leaves none, or group-norm, which
has no such rules: no buffers, and every sample by itself.
"""

from functools import partial

from torch import nn

from raysim.data.torchvision_import import import_torchvision
from raysim.models.classifier import Classifier

CIFAR_STEM_UP_TO = 64  # pixels


def resnet18(shape, classes: int, norm=nn.BatchNorm2d) -> Classifier:
    channels, *sides = shape
    net = import_torchvision().models.resnet18(norm_layer=norm)
    if max(sides) <= CIFAR_STEM_UP_TO:
        net.conv1 = _convolution(channels, 3, stride=1, padding=1)
        net.maxpool = nn.Identity()
    elif channels != 3:
        net.conv1 = _convolution(channels, 7, stride=2, padding=3)
    feature_size = net.fc.in_features
    net.fc = nn.Identity()  # the head stands apart, as in every classifier
    return Classifier(net, feature_size, classes)


def resnet18_gn(shape, classes: int) -> Classifier:
    return resnet18(shape, classes, norm=partial(nn.GroupNorm, 32))  # 32 divides all its widths: 64, 128, 256, 512


def _convolution(channels: int, size: int, **options) -> nn.Conv2d:
    """A first layer initialised as torchvision initialises its own."""
    layer = nn.Conv2d(channels, 64, size, bias=False, **options)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
