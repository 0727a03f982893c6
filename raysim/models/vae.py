"""A variational auto-encoder that also classifies (FedDPMS): an encoder, a classifier on the latent mean, a decoder."""

from collections.abc import Callable

from torch import Tensor, nn

from raysim.models.classifier import classified


class VaeClassifier(nn.Module):
    """A classifier whose feature is the latent mean, in (0, 1), and whose decoder makes an image of a latent vector.

    `decoder(z)` gives pixels in [0, 1]. `log_variance(encoder(x))` serves to sample z, in training only.
    """

    has_maps = True  # as a Classifier may have

    def __init__(self, encoder: nn.Module, encoded: int, latent: int, decoder: nn.Module, classes: int):
        super().__init__()
        self.feature_size = latent
        self.encoder = encoder
        self.mean = nn.Linear(encoded, latent)
        self.log_variance = nn.Linear(encoded, latent)
        self.decoder = decoder
        self.head = nn.Linear(latent, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the latent means of images."""
        return self.latent_mean(self.encoder(x))

    def latent_mean(self, encoded: Tensor) -> Tensor:
        """Return the latent means of encoded images."""
        return self.mean(encoded).sigmoid()

    def maps(self, x: Tensor) -> Tensor:
        """Return the encoded images: the flattened output of the convolutions."""
        return self.encoder(x)

    def features_of(self, maps: Tensor) -> Tensor:
        """Return the features that follow from `maps(x)`."""
        return self.latent_mean(maps)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def latent_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return KL(N(μ, σ²) ‖ N(0, 1)), averaged over samples and dimensions as in the authors' code."""
    return 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).mean()


def forward_keeping(kept: dict[str, Tensor]) -> Callable[[VaeClassifier, Tensor, Tensor], tuple[Tensor, ...]]:
    """Return an uncompiled forward pass for local steps that puts the encoder's output into `kept`."""

    def forward(module: VaeClassifier, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        encoded = module.encoder(x)
        kept["encoded"] = encoded[: len(y)] if len(encoded) > len(y) else encoded
        return classified(module, module.latent_mean(encoded), y)

    return forward


class Crop(nn.Module):
    """A layer that cuts images to a height and width.

    A side that was halved, rounding up, is too long when it is doubled.
    """

    def __init__(self, height: int, width: int):
        super().__init__()
        self.height, self.width = height, width

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, : self.height, : self.width]
