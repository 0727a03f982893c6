"""The papers' networks: their sizes, and pooling before the ReLU being the usual order bit for bit."""

import pytest
import torch
from torch import nn

from raysim import models


def size(model):
    return sum(p.numel() for p in model.parameters())


def convolution(inputs, outputs, side):
    return inputs * outputs * side * side + outputs


def linear(inputs, outputs):
    return inputs * outputs + outputs


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("hfmds-cnn", (3, 32, 32), 10, 878_538),
        ("hfmds-cnn", (3, 32, 32), 100, 878_538 + 90 * 513),
        ("hfmds-cnn", (1, 28, 28), 10, 582_026),  # flattened 1,024
        # 2·channels after each convolution: batch-norm's weight and bias
        (
            "fedpa-cnn",
            (1, 28, 28),
            10,
            convolution(1, 6, 3) + 2 * 6 + convolution(6, 16, 3) + 2 * 16 + linear(784, 32) + linear(32, 10),
        ),
        (
            "fedpa-celeba-cnn",
            (3, 84, 84),
            2,
            sum(convolution(i, o, 3) + 2 * o for i, o in ((3, 16), (16, 32), (32, 64)))
            + linear(64, 32)
            + linear(32, 2),
        ),
        (
            "small-cnn",
            (3, 32, 32),
            10,
            convolution(3, 6, 5) + convolution(6, 16, 5) + linear(400, 32) + linear(32, 10),
        ),
        ("mlp", (3, 32, 32), 10, linear(3072, 64) + linear(64, 10)),
    ],
)
def test_parameter_counts(name, shape, classes, parameters):
    assert size(models.build(name, shape, classes, seed=0)) == parameters


def test_fedpa_features_have_no_activation():
    for name in ("fedpa-cnn", "fedpa-celeba-cnn"):
        model = models.build(name, (1, 84, 84), 10, seed=0).eval()
        assert model.features(torch.randn(8, 1, 84, 84)).min() < 0


def usual_order(extractor):
    """The same layers with every pool after its ReLU."""
    layers = list(extractor)
    for i in [i for i, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d)]:
        layers[i], layers[i + 1] = layers[i + 1], layers[i]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("name", ["hfmds-cnn", "small-cnn", "fedpa-celeba-cnn"])
def test_pooling_before_relu_changes_no_bit(name):
    side = 84 if "celeba" in name else 32
    model = models.build(name, (3, side, side), 10, seed=0)
    x = torch.randn(6, 3, side, side, generator=torch.Generator().manual_seed(0))
    x[0], x[1] = 0, 1  # constant images: every window is a tie
    y = torch.arange(6)
    results = []
    for extractor in (model.extractor, usual_order(model.extractor)):
        model.zero_grad()
        image = x.clone().requires_grad_()
        logits = model.head(extractor(image))
        nn.functional.cross_entropy(logits, y).backward()
        results.append([logits.detach(), image.grad, *(p.grad.clone() for p in model.parameters())])
    assert all(torch.equal(ours, usual) for ours, usual in zip(*results, strict=True))
