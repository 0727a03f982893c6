"""The convolution for small maps computes what torch's does, to the second derivative."""

import pytest
import torch
from torch import nn

from raysim.models import build
from raysim.models.convolution import DeepConv2d, ImageConv2d, deep
from raysim.training.profiling import FlopCounter


def both(stride):
    torch.manual_seed(0)
    plain = nn.Conv2d(48, 16, 3, stride, padding=1, bias=False).to(memory_format=torch.channels_last)
    return plain, deep(plain)


@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (2, 1)])
def test_outputs_and_gradients_are_those_of_torch(stride):
    plain, ours = both(stride)
    assert ours.weight is plain.weight
    x = torch.randn(2, 48, 4, 4, requires_grad=True)
    gradients = []
    for layer in (plain, ours):
        with FlopCounter() as counter:
            found = torch.autograd.grad(layer(x).square().sum(), [x, layer.weight])
        gradients.append((*found, torch.tensor(counter.total)))
    assert torch.equal(plain(x), ours(x))
    assert "_Convolution" in str(ours(x).grad_fn)
    for expected, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)
    assert gradients[1][1].is_contiguous(memory_format=torch.channels_last)


def test_the_gradient_of_a_gradient():
    """FedMix needs it."""
    plain, ours = both((1, 1))
    found = []
    for layer in (plain, ours):
        x = torch.randn(2, 48, 4, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
        (first,) = torch.autograd.grad(layer(x).tanh().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), layer.weight)[0])
    torch.testing.assert_close(found[1], found[0])


def test_large_maps_and_autocast_are_left_to_torch():
    _, ours = both((1, 1))
    assert "_Convolution" not in str(ours(torch.randn(2, 48, 5, 5)).grad_fn)  # 50 positions
    with torch.autocast("cpu", torch.bfloat16):
        assert "_Convolution" not in str(ours(torch.randn(2, 48, 4, 4)).grad_fn)


def test_a_resnet_has_them_in_its_last_block_and_the_weights_that_it_had():
    net = build("resnet18", (3, 32, 32), 10, seed=0)
    deep_ones = [name for name, layer in net.named_modules() if isinstance(layer, DeepConv2d)]
    assert len(deep_ones) == 4
    assert all("layer4" in name for name in deep_ones)
    assert list(net.state_dict()) == list(build("resnet18", (3, 32, 32), 10, seed=0).state_dict())


@pytest.mark.parametrize(("channels", "sides", "kernel"), [(3, (8, 10), 5), (1, (8, 12), 3), (4, (6, 6), (5, 3))])
def test_gradients_of_images_are_those_of_torch(channels, sides, kernel):
    torch.manual_seed(0)
    plain, ours = nn.Conv2d(channels, 7, kernel), ImageConv2d(channels, 7, kernel)
    ours.load_state_dict(plain.state_dict())
    x = torch.randn(2, channels, *sides).contiguous(memory_format=torch.channels_last).requires_grad_()
    assert "_OfImages" not in str(ours(x).grad_fn)  # its weights are trained
    found = []
    for layer in (plain.requires_grad_(False), ours.requires_grad_(False)):
        with FlopCounter() as counter:
            (gradient,) = torch.autograd.grad(layer(x).tanh().sum(), x)
        found.append((gradient, torch.tensor(counter.total)))
    assert "_OfImages" in str(ours(x).grad_fn)
    for expected, own in zip(*found, strict=True):
        torch.testing.assert_close(own, expected)
    assert found[1][0].is_contiguous(memory_format=torch.channels_last)


def test_images_without_gradients_or_of_odd_sides_are_left_to_torch():
    layer = ImageConv2d(3, 4, 3).requires_grad_(False)
    assert layer(torch.randn(1, 3, 8, 8)).grad_fn is None
    assert "_OfImages" not in str(layer(torch.randn(1, 3, 8, 9, requires_grad=True)).grad_fn)
    with torch.autocast("cpu", torch.bfloat16):
        assert "_OfImages" not in str(layer(torch.randn(1, 3, 8, 8, requires_grad=True)).grad_fn)
