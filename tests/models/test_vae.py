"""FedDPMS's auto-encoders: their sizes, the mirrored decoder, the divergence against integration."""

import numpy as np
import pytest
import torch
from torch import nn

from raysim import models
from raysim.models.vae import Crop, forward_keeping, latent_divergence


def weights(inputs, outputs, side, bias=True):
    return inputs * outputs * side * side + bias * outputs


def after(outputs):
    """PReLU's slope, batch-norm's weight and bias."""
    return 1 + 2 * outputs


@pytest.mark.parametrize(
    ("name", "shape", "encoder", "decoder", "encoded", "latent"),
    [
        (
            "feddpms-vae",
            (1, 28, 28),
            weights(1, 32, 3, bias=False) + weights(32, 32, 3) + weights(32, 64, 3) + 2 * after(32) + after(64),
            weights(64, 64, 3) + weights(64, 32, 3) + weights(32, 1, 3) + after(64) + after(32),
            3136,
            32,
        ),
        (
            "feddpms-cifar-vae",
            (3, 32, 32),
            weights(3, 32, 3, bias=False) + weights(32, 32, 3) + weights(32, 64, 3) + weights(64, 64, 3)
            + 2 * after(32) + 2 * after(64),
            weights(64, 64, 3) + weights(64, 32, 3) + weights(32, 32, 3) + weights(32, 3, 3)
            + after(64) + 2 * after(32),
            4096,
            128,
        ),
    ],
)  # fmt: skip
def test_sizes(name, shape, encoder, decoder, encoded, latent):
    module = models.build(name, shape, 10, seed=0)
    counts = {part: sum(p.numel() for p in child.parameters()) for part, child in module.named_children()}
    through = encoded * latent + latent
    assert counts == {
        "encoder": encoder,
        "mean": through,
        "log_variance": through,
        "decoder": latent * encoded + encoded + decoder,
        "head": latent * 10 + 10,
    }


@pytest.mark.parametrize("name", models.with_decoder())
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (2, 9, 14), (1, 4, 4)], ids=str)
def test_the_decoder_gives_pixels_of_the_images_shape(name, shape):
    module = models.build(name, shape, 5, seed=0).eval()
    made = module.decoder(10 * torch.randn(3, module.feature_size))
    assert made.shape == (3, *shape)
    assert 0 <= made.min() < made.max() <= 1


@pytest.mark.parametrize("name", models.with_decoder())
def test_the_decoder_mirrors_the_encoder(name):
    """Transposed convolutions undo the channels, one for one, and double where the encoder pools."""
    module = models.build(name, (3, 32, 32), 10, seed=0)
    down = [layer for layer in module.encoder if isinstance(layer, nn.Conv2d)]
    up = [layer for layer in module.decoder if isinstance(layer, nn.ConvTranspose2d)]
    assert len(down) == len(up)
    assert (up[0].in_channels, up[-1].out_channels) == (down[-1].out_channels, down[0].in_channels)
    pools = [layer for layer in module.encoder if "Pool" in type(layer).__name__]
    assert [type(layer) for layer in pools] == [nn.MaxPool2d] * 2
    assert sum(layer.stride == (2, 2) for layer in up) == 2


@pytest.mark.parametrize(
    ("name", "turned"), [("feddpms-vae", []), ("feddpms-cifar-vae", [2])], ids=["fashion", "cifar"]
)
def test_what_follows_a_transposed_convolution(name, turned):
    """PReLU, then batch-norm, but in the third block of CIFAR's decoder, as the authors have it."""
    kinds = [type(layer) for layer in models.build(name, (3, 32, 32), 10, seed=0).decoder]
    at = [i for i, kind in enumerate(kinds) if kind is nn.ConvTranspose2d]
    assert kinds[at[-1] + 1] is Crop
    usual = [nn.PReLU, nn.BatchNorm2d]
    for block, first in enumerate(at[:-1]):
        assert kinds[first + 1 : first + 3] == (usual[::-1] if block in turned else usual)


def test_the_feature_is_a_sigmoid_of_which_nothing_is_sampled():
    module = models.build("feddpms-vae", (1, 28, 28), 10, seed=0).train()
    x = torch.randn(4, 1, 28, 28)
    features = module.features(x)
    assert torch.equal(features, module.features(x))
    assert 0 < features.min() < features.max() < 1
    torch.testing.assert_close(features, 1 / (1 + torch.exp(-module.mean(module.encoder(x)))))


def test_the_forward_pass_that_keeps_is_the_ordinary_one():
    from raysim.training.client import forward

    module = models.build("feddpms-vae", (1, 28, 28), 10, seed=0).eval()
    x, y, kept = torch.randn(4, 1, 28, 28), torch.tensor([1, 2, 3, 4]), {}
    for mine, engines in zip(forward_keeping(kept)(module, x, y), forward(module, x, y), strict=True):
        assert torch.equal(mine, engines)
    assert torch.equal(kept["encoded"], module.encoder(x))


def test_divergence_against_integration():
    draw = np.random.default_rng(0)
    mean, log_variance = draw.uniform(0, 1, (3, 2)), draw.normal(0, 1, (3, 2))
    z = np.linspace(-30, 30, 600_001)

    def log_density(z, m, v):
        return -0.5 * (np.log(2 * np.pi) + v + (z - m) ** 2 / np.exp(v))

    each = [
        np.trapezoid(np.exp(log_density(z, m, v)) * (log_density(z, m, v) - log_density(z, 0, 0)), z)
        for m, v in zip(mean.ravel(), log_variance.ravel(), strict=True)
    ]
    got = latent_divergence(torch.from_numpy(mean), torch.from_numpy(log_variance)).item()
    assert got == pytest.approx(np.mean(each), rel=1e-6)
