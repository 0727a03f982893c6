"""A stacked network gives each client what the ordinary one gives it alone, gradients and statistics included."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from raysim import models
from raysim.errors import InputError
from raysim.models import patch_convolution, stacked
from raysim.models.flat import FlatModel
from raysim.training.fused import Stack, cross_entropies, pad
from raysim.training.profiling import FlopCounter

CPU = torch.device("cpu")
CLASSES = 5


def alone(model, weights, x, y):
    """The ordinary network's gradients, and its weights with the statistics of this batch."""
    model.load(weights)
    model.gradients.zero_()
    F.cross_entropy(model.module(x), y).backward()
    return model.gradients.clone(), model.weights.clone()


NAMES = [name for name, _ in models.names() if name not in models.with_decoder()]  # those have other layers
# Bytes of patches of a client, and of several together: all directly, one client at a time, all at once.
LIMITS = {"directly": (0, 0), "one by one": (2**40, 0), "together": (2**40, 2**40)}
WAYS = [(name, way) for name in NAMES for way in LIMITS if way == "directly" or "resnet" not in name]


@pytest.mark.parametrize(("name", "way"), WAYS, ids=str)
def test_every_model_with_batches_of_unequal_length(monkeypatch, name, way):
    """With convolutions by patches and direct ones; those of ResNet are the same and take longer."""
    of_one, together = LIMITS[way]
    monkeypatch.setattr(stacked, "PATCH_BYTES", of_one)
    monkeypatch.setattr(patch_convolution, "TOGETHER_BYTES", together)
    torch.manual_seed(1)
    shape = (3, 43, 43) if name == "fedpa-celeba-cnn" else (3, 16, 16)
    module = models.build(name, shape, CLASSES, seed=0).train()
    for layer in list(module.modules()):
        for leaf, child in layer.named_children():
            if isinstance(child, nn.ReLU):  # a kink, on a side of which rounding may decide
                setattr(layer, leaf, nn.GELU())
    model = FlatModel(module, CPU)
    start = [model.weights * factor for factor in (1.0, 1.1, 0.9)]
    data = [(torch.randn(n, *shape), torch.randint(CLASSES, (n,))) for n in (6, 5, 3)]
    stack = Stack(model, 4, name)  # one row more than clients, as for the last group of a cohort
    stack.load(start, start)
    stack.use(3)
    x, y, share = pad(data)
    stack.backward(cross_entropies(stack.head(stack.features(x, share)), y, share))
    for i, (x, y) in enumerate(data):
        gradients, weights = alone(model, start[i], x, y)
        assert (stack.gradients[i] - gradients).norm() <= 1e-4 * gradients.norm()
        torch.testing.assert_close(stack.weights[i], weights, rtol=1e-4, atol=1e-5)


def pooled(channels, size, padding=0):
    """A convolution and its pool, stacked for two clients, their kernels and biases: quarters, so sums are exact."""
    layers = nn.Sequential(nn.Conv2d(channels, 6, size, padding=padding), nn.MaxPool2d(2))
    both = stacked.stacked(layers, "own")
    assert isinstance(both[0], stacked.StackedPooledConv2d)
    kernels = quarters(2, 6, size, size, channels).permute(0, 1, 4, 2, 3).requires_grad_()
    both[0].weight, both[0].bias = kernels, quarters(2, 6).requires_grad_()
    return both, kernels, both[0].bias


def quarters(*shape):
    return (4 * torch.randn(shape)).round() / 4


def by_client(x):
    """Images [clients, batch, …] as a stacked network on CPUs takes them."""
    return x.permute(0, 2, 3, 4, 1).contiguous().flatten(0, 1).permute(3, 0, 1, 2)


@pytest.mark.parametrize("sides", [(12, 12), (13, 10), (11, 13)], ids=str)
@pytest.mark.parametrize(("channels", "size", "padding"), [(1, 5, 0), (3, 3, 1), (4, 1, 0)], ids=str)
def test_a_convolution_of_images_with_its_pool(sides, channels, size, padding):
    """Also where outputs of a pool are equal, as on a black border: the first has the gradient, as in torch."""
    torch.manual_seed(0)
    both, kernels, bias = pooled(channels, size, padding)
    x = quarters(2, 5, channels, *sides)
    x[..., : sides[0] // 2 + 1, :] = 0.5
    x.requires_grad_()
    outputs = both(by_client(x))
    weights = quarters(*outputs.shape)
    found = torch.autograd.grad((outputs * weights).sum(), [x, kernels, bias])
    each = [F.max_pool2d(F.conv2d(x[i], kernels[i], bias[i], padding=padding), 2) for i in range(2)]
    expected = torch.autograd.grad((torch.cat(each, 1) * weights).sum(), [x, kernels, bias])
    assert torch.equal(outputs, torch.cat(each, 1))
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)


def test_its_gradient_can_be_differentiated():
    """As FedMix does, whose loss has the gradient of the images."""
    torch.manual_seed(0)
    both, kernels, bias = pooled(1, 3)
    x = quarters(2, 5, 1, 8, 8).requires_grad_()

    def of_slope(outputs):
        (slope,) = torch.autograd.grad((0.1 * outputs).exp().mean(), [x], create_graph=True)
        return torch.autograd.grad(slope.square().sum(), [kernels, bias])

    found = of_slope(both(by_client(x)))
    expected = of_slope(torch.cat([F.max_pool2d(F.conv2d(x[i], kernels[i], bias[i]), 2) for i in range(2)], 1))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Conv2d(8, 6, 3), nn.MaxPool2d(2)), (nn.Conv2d(1, 6, 4), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 6, 3, stride=2), nn.MaxPool2d(2)), (nn.Conv2d(1, 6, 3), nn.MaxPool2d(2, stride=1)),
        (nn.Conv2d(1, 6, 3), nn.MaxPool2d(2, ceil_mode=True)), (nn.Conv2d(1, 6, 3), nn.ReLU(), nn.MaxPool2d(2)),
    ],
    ids=str,
)  # fmt: skip
def test_other_convolutions_and_pools_stay_apart(layers):
    assert type(stacked.stacked(nn.Sequential(*layers), "own")[0]) is stacked.StackedConv2d


def test_operations_count_as_those_of_the_convolution():
    """The zeros that blocks add to a kernel are no work that a client would do."""
    both, _, _ = pooled(1, 5)
    with FlopCounter() as counter:
        both(torch.randn(5, 2, 12, 12)).sum().backward()
    assert counter.total == pytest.approx(2 * 2 * (2 * 5 * 6 * 25 * 8 * 8), rel=0.01)  # forward, and of the kernels


def test_batch_norm_refuses_a_single_value_as_torch_does():
    layer = stacked.StackedBatchNorm2d(nn.BatchNorm2d(2), grouped=False)
    layer.weight, layer.bias = torch.ones(1, 2), torch.zeros(1, 2)
    layer.share = torch.tensor([[1.0, 0.0]])
    with pytest.raises(ValueError, match="more than one value per channel"):
        layer(torch.zeros(2, 2, 1, 1))


@pytest.mark.parametrize("layer", [nn.PReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.BatchNorm2d(4, affine=False)], ids=str)
def test_a_layer_it_does_not_know_is_refused_in_one_line(layer):
    with pytest.raises(InputError, match=r"--fuse: --model odd has the layer \w+.*use --fuse 1") as caught:
        stacked.stacked(nn.Sequential(nn.ReLU(), layer), "odd")
    assert "\n" not in str(caught.value)
