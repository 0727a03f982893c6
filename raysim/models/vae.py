"""FedDPMS's variational auto-encoders that classify: an encoder, a classifier on the latent mean, a decoder.

Layers and sizes are those of the authors' code but for its dropout (0 on FashionMNIST, 0.2 on CIFAR), which would draw
from torch's own generator. The latent mean goes through a sigmoid and the classifier takes it, as the paper says.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F


class VaeClassifier(nn.Module):
    """A classifier whose feature is the latent mean, in (0, 1), with what makes it a VAE.

    `decoder(z)` gives pixels in [0, 1]; `log_variance(encoder(x))` is that of z, which is sampled in training only.
    """

    def __init__(self, encoder: nn.Module, encoded: int, latent: int, decoder: nn.Module, classes: int):
        super().__init__()
        self.feature_size = latent
        self.encoder = encoder
        self.mean = nn.Linear(encoded, latent)
        self.log_variance = nn.Linear(encoded, latent)
        self.decoder = decoder
        self.head = nn.Linear(latent, classes)

    def features(self, x: Tensor) -> Tensor:
        return self.latent_mean(self.encoder(x))

    def latent_mean(self, encoded: Tensor) -> Tensor:
        return self.mean(encoded).sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def latent_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(μ, σ²) ‖ N(0, 1)), averaged over samples and dimensions as in the authors' code."""
    return 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).mean()


def forward_keeping(kept: dict[str, Tensor]) -> Callable:
    """The local step's forward pass (training/client.py), never compiled, leaving the encoder's output in `kept`."""

    def forward(module: VaeClassifier, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        kept["encoded"] = module.encoder(x)
        features = module.latent_mean(kept["encoded"])
        logits = module.head(features)
        return features, logits, F.cross_entropy(logits, y)

    return forward


class Crop(nn.Module):
    """To this height and width: two doublings of a side that was halved with rounding up may be too long."""

    def __init__(self, height: int, width: int):
        super().__init__()
        self.height, self.width = height, width

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, : self.height, : self.width]


def _convolution(inputs: int, outputs: int, bias: bool = True) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias), nn.PReLU(), nn.BatchNorm2d(outputs)]


def _transposed(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.ConvTranspose2d(inputs, outputs, 3, padding=1), nn.PReLU(), nn.BatchNorm2d(outputs)]


def _doubling(inputs: int, outputs: int) -> nn.Module:
    return nn.ConvTranspose2d(inputs, outputs, 3, stride=2, padding=1, output_padding=1)


def _vae(shape, classes: int, latent: int, encoder: list[nn.Module], mirrored: list[nn.Module]) -> VaeClassifier:
    """Between the encoder's two poolings and the decoder's two doublings are 64 channels."""
    _, height, width = shape
    small = -(-height // 4), -(-width // 4)
    encoded = 64 * small[0] * small[1]
    decoder = nn.Sequential(
        nn.Linear(latent, encoded), nn.Unflatten(1, (64, *small)), *mirrored, Crop(height, width), nn.Sigmoid()
    )
    return VaeClassifier(nn.Sequential(*encoder, nn.Flatten()), encoded, latent, decoder, classes)


def feddpms_vae(shape, classes: int) -> VaeClassifier:
    """For FashionMNIST: 3,136 encoded values at 28×28, 32 latent ones."""
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


def feddpms_cifar_vae(shape, classes: int) -> VaeClassifier:
    """For CIFAR: 4,096 encoded values at 32×32, 128 latent ones."""
    channels = shape[0]
    encoder = [
        *_convolution(channels, 32, bias=False),
        *_convolution(32, 32),
        nn.MaxPool2d(2, ceil_mode=True),
        *_convolution(32, 64),
        *_convolution(64, 64),
        nn.AvgPool2d(2, ceil_mode=True),
    ]
    mirrored = [
        *_transposed(64, 64),
        _doubling(64, 32),
        nn.PReLU(),
        nn.BatchNorm2d(32),
        *_transposed(32, 32),
        _doubling(32, channels),
    ]
    return _vae(shape, classes, 128, encoder, mirrored)
