"""FedDPMS's variational auto-encoders.

Layers and sizes are those of the authors' code, without its dropout (0 on FashionMNIST, 0.2 on CIFAR), which would draw
from torch's own generator. The classifier takes the latent mean after a sigmoid, as in the paper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.models.classifiers.base import Model, Shape

if TYPE_CHECKING:
    from torch import nn

    from raysim.models.vae import VaeClassifier


def _convolution(inputs: int, outputs: int, bias: bool = True) -> list[nn.Module]:
    from torch import nn

    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias), nn.PReLU(), nn.BatchNorm2d(outputs)]


def _transposed(inputs: int, outputs: int) -> list[nn.Module]:
    from torch import nn

    return [nn.ConvTranspose2d(inputs, outputs, 3, padding=1), nn.PReLU(), nn.BatchNorm2d(outputs)]


def _doubling(inputs: int, outputs: int) -> nn.Module:
    from torch import nn

    return nn.ConvTranspose2d(inputs, outputs, 3, stride=2, padding=1, output_padding=1)


def _vae(shape: Shape, classes: int, latent: int, encoder: list[nn.Module], mirrored: list[nn.Module]) -> VaeClassifier:
    """Build an auto-encoder for images of this shape.

    The encoder's two poolings leave 64 channels at a quarter of the size; the decoder begins with the same.
    """
    from torch import nn

    from raysim.models.vae import Crop, VaeClassifier

    _, height, width = shape
    small = -(-height // 4), -(-width // 4)
    encoded = 64 * small[0] * small[1]
    decoder = nn.Sequential(
        nn.Linear(latent, encoded), nn.Unflatten(1, (64, *small)), *mirrored, Crop(height, width), nn.Sigmoid()
    )
    return VaeClassifier(nn.Sequential(*encoder, nn.Flatten()), encoded, latent, decoder, classes)


def feddpms_vae(shape: Shape, classes: int) -> VaeClassifier:
    """Build the auto-encoder for FashionMNIST: 3,136 encoded values at 28×28, 32 latent ones."""
    from torch import nn

    channels = shape[0]
    encoder = [
        *_convolution(channels, 32, bias=False),
        *_convolution(32, 32),
        nn.MaxPool2d(2, ceil_mode=True),
        *_convolution(32, 64),
        nn.MaxPool2d(2, ceil_mode=True),
    ]
    mirrored = [
        *_transposed(64, 64),
        _doubling(64, 32),
        nn.PReLU(),
        nn.BatchNorm2d(32),
        _doubling(32, channels),
    ]
    return _vae(shape, classes, 32, encoder, mirrored)


def feddpms_cifar_vae(shape: Shape, classes: int) -> VaeClassifier:
    """Build the auto-encoder for CIFAR: 4,096 encoded values at 32×32, 128 latent ones."""
    from torch import nn

    channels = shape[0]
    encoder = [
        *_convolution(channels, 32, bias=False),
        *_convolution(32, 32),
        nn.MaxPool2d(2, ceil_mode=True),
        *_convolution(32, 64),
        *_convolution(64, 64),
        nn.MaxPool2d(2, ceil_mode=True),
    ]
    mirrored = [
        *_transposed(64, 64),
        _doubling(64, 32),
        nn.PReLU(),
        nn.BatchNorm2d(32),
        nn.ConvTranspose2d(32, 32, 3, padding=1),
        nn.BatchNorm2d(32),  # before PReLU in this block alone, as in the authors' code
        nn.PReLU(),
        _doubling(32, channels),
    ]
    return _vae(shape, classes, 128, encoder, mirrored)


MODELS = {
    "feddpms-vae": Model(
        feddpms_vae, 4, "VAE of three 3×3 convolutions (32, 32, 64), latent 32; FedDPMS", decodes=True, has_maps=True
    ),
    "feddpms-cifar-vae": Model(
        feddpms_cifar_vae,
        4,
        "VAE of four 3×3 convolutions (32, 32, 64, 64), latent 128; FedDPMS",
        decodes=True,
        has_maps=True,
    ),
}
