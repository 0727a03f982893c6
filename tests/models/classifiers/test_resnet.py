"""ResNet-18: its two stems, its two norms, and which buffers there are to average."""

import pytest
import torch
from torch import nn

from raysim import models


def size(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["resnet18", "resnet18-gn"])
def test_parameter_counts(name):
    assert size(models.build(name, (3, 32, 32), 10, seed=0)) == 11_173_962  # CIFAR stem
    assert size(models.build(name, (3, 224, 224), 1000, seed=0)) == 11_689_512  # torchvision's own


@pytest.mark.parametrize(("side", "stride"), [(32, 1), (64, 1), (65, 2)])
def test_the_stem_follows_the_image_size(side, stride):
    for channels in (1, 3):
        net = models.build("resnet18", (channels, side, side), 10, seed=0).extractor
        assert (net.conv1.in_channels, net.conv1.stride) == (channels, (stride, stride))
        assert isinstance(net.maxpool, nn.Identity) == (stride == 1)


def test_buffers():
    batch_norm = dict(models.build("resnet18", (3, 32, 32), 10, seed=0).named_buffers())
    integers = [name for name, value in batch_norm.items() if not value.is_floating_point()]
    assert integers == [name for name in batch_norm if name.endswith("num_batches_tracked")]
    assert len(batch_norm) == 3 * len(integers) == 60
    assert not dict(models.build("resnet18-gn", (3, 32, 32), 10, seed=0).named_buffers())


def test_group_norm_trains_on_one_sample_and_batch_norm_says_why_not():
    x = torch.randn(1, 3, 8, 8)
    models.build("resnet18-gn", (3, 8, 8), 10, seed=0)(x).sum().backward()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        models.build("resnet18", (3, 8, 8), 10, seed=0)(x)
