"""A variational auto-encoder that classifies: an encoder, a classifier on the latent mean, a decoder (FedDPMS)."""

from collections.abc import Callable

from torch import Tensor, nn

from raysim.models.classifier import classified


class VaeClassifier(nn.Module):
    """A classifier whose feature is the latent mean, in (0, 1), and which can decode a latent vector to an image.

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
        """The latent means of images."""
        return self.latent_mean(self.encoder(x))

    def latent_mean(self, encoded: Tensor) -> Tensor:
        """The latent means of encoded images."""
        return self.mean(encoded).sigmoid()

    def maps(self, x: Tensor) -> Tensor:
        """The flattened output of the convolutions: encoded images."""
        return self.encoder(x)

    def features_of(self, maps: Tensor) -> Tensor:
        """The features that follow from `maps(x)`."""
        return self.latent_mean(maps)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def latent_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """The divergence KL(N(μ, σ²) ‖ N(0, 1)), averaged over samples and dimensions as in the authors' code."""
    return 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).mean()


def forward_keeping(kept: dict[str, Tensor]) -> Callable[[VaeClassifier, Tensor, Tensor], tuple[Tensor, ...]]:
    """A forward pass for local steps (training/client.py), not compiled, that puts the encoder's output into `kept`."""

    def forward(module: VaeClassifier, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        encoded = module.encoder(x)
        kept["encoded"] = encoded[: len(y)] if len(encoded) > len(y) else encoded
        return classified(module, module.latent_mean(encoded), y)

    return forward


class Crop(nn.Module):
    """A layer that cuts images to a height and width: a side that was halved, rounding up, is too long when doubled."""

    def __init__(self, height: int, width: int):
        super().__init__()
        self.height, self.width = height, width

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, : self.height, : self.width]
