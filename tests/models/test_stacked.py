"""A stacked network gives each client what the ordinary one gives it alone, gradients and statistics included."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from raysim import models
from raysim.errors import InputError
from raysim.models import stacked
from raysim.models.flat import FlatModel
from raysim.training.fused import Stack, cross_entropies, pad

CPU = torch.device("cpu")
CLASSES = 5


def alone(model, weights, x, y):
    """The ordinary network's gradients, and its weights with the statistics of this batch."""
    model.load(weights)
    model.gradients.zero_()
    F.cross_entropy(model.module(x), y).backward()
    return model.gradients.clone(), model.weights.clone()


NAMES = [name for name, _ in models.names() if name not in models.with_decoder()]  # those have other layers
BOTH = [(name, direct) for name in NAMES for direct in (False, True) if direct or "resnet" not in name]


@pytest.mark.parametrize(("name", "direct"), BOTH, ids=str)
def test_every_model_with_batches_of_unequal_length(monkeypatch, name, direct):
    """With convolutions by patches and direct ones; those of ResNet are the same and take longer."""
    monkeypatch.setattr(stacked, "PATCH_BYTES", 0 if direct else 2**40)
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
