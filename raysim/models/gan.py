"""The two networks of a WGAN-GP for images of at least 8×8, with a class as input (conditional) or without.

Images are in [-1, 1]. `conditions` are one-hot labels [batch, classes]; in an unconditional GAN they have no columns.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from raysim.rng import stream

SMALLEST = 8  # pixels: three layers halve the image


class ImageGenerator(nn.Module):
    """The generator: four transposed convolutions, to an eighth, a quarter, a half and all of the image's side."""

    def __init__(self, noise_size: int, shape: tuple[int, int, int], width: int, classes: int = 0):
        super().__init__()
        channels, *sides = shape
        sizes = [[-(-side // 2**halvings) for side in sides] for halvings in (3, 2, 1, 0)]
        widths = [4 * width, 2 * width, width, channels]
        rows, columns = sizes[0]
        layers: list[nn.Module] = [nn.ConvTranspose2d(noise_size + classes, widths[0], (rows, columns), bias=False)]
        for (before, after), (small, large) in zip(pairwise(widths), pairwise(sizes), strict=True):
            # A kernel of 4 doubles a side; one of 3 gives a pixel less, where the larger side is odd.
            down, across = (4 if new == 2 * old else 3 for old, new in zip(small, large, strict=True))
            layers += [nn.BatchNorm2d(before), nn.ReLU()]
            layers += [nn.ConvTranspose2d(before, after, (down, across), stride=2, padding=1, bias=after == channels)]
        self.layers = nn.Sequential(*layers, nn.Tanh())

    def forward(self, noise: Tensor, conditions: Tensor) -> Tensor:
        return self.layers(torch.cat([noise, conditions], 1)[:, :, None, None])


class Critic(nn.Module):
    """The critic: four convolutions and a linear layer, which gives a score for every class if conditional.

    It has no batch-norm, since the gradient penalty and clipping treat samples one by one.
    """

    def __init__(self, shape: tuple[int, int, int], width: int, classes: int = 0):
        super().__init__()
        channels, *sides = shape
        layers: list[nn.Module] = []
        for before, after in pairwise((channels, width, 2 * width, 4 * width)):
            layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
        layers += [nn.Conv2d(4 * width, 4 * width, 3, padding=1), nn.LeakyReLU(0.2), nn.Flatten()]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(4 * width * (sides[0] // 8) * (sides[1] // 8), classes or 1)

    def forward(self, x: Tensor, conditions: Tensor) -> Tensor:
        scores = self.head(self.layers(x))
        return (scores * conditions).sum(1) if conditions.shape[1] else scores[:, 0]


def build_gan(
    noise_size: int, shape: tuple[int, int, int], width: int, classes: int, seed: int
) -> tuple[ImageGenerator, Critic]:
    """Return generator and critic on the CPU whose weights depend on the seed only; torch's generator is unchanged."""
    if min(shape[1:]) < SMALLEST:
        raise ValueError(f"a GAN needs images of at least {SMALLEST}×{SMALLEST}, not {shape[1]}×{shape[2]}")
    init = int(stream(seed, "gan-init").integers(2**63))
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(init)  # not torch.manual_seed, which would also reseed the GPUs
        return ImageGenerator(noise_size, shape, width, classes), Critic(shape, width, classes)
