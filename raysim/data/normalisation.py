"""Normalisation: pixels 0 to 255 become what networks compute on, (pixel − mean) / std per channel, and come back.

The formula stands here and nowhere else. Importing this does not import torch: the driver normalises nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

WHITE = 255.0


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation per channel, of pixels from 0 to 255."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def half(cls, channels: int) -> Normalisation:
        """To [-1, 1], whatever the data."""
        return cls((WHITE / 2,) * channels, (WHITE / 2,) * channels)

    @classmethod
    def of(cls, images: np.ndarray) -> Normalisation:
        """By the mean and standard deviation of these images (uint8); from counts of pixel values, so it is exact."""
        means, stds = [], []
        values = np.arange(256, dtype=np.float64)
        for channel in range(images.shape[1]):
            counts = np.zeros(256, dtype=np.int64)
            for start in range(0, len(images), 4096):
                counts += np.bincount(images[start : start + 4096, channel].ravel(), minlength=256)
            mean = float(counts @ values / counts.sum())
            means.append(mean)
            # A constant channel would divide by zero.
            stds.append(max(float(counts @ (values - mean) ** 2 / counts.sum()) ** 0.5, 1.0))
        return cls(tuple(means), tuple(stds))

    def to_bytes(self, images: np.ndarray) -> np.ndarray:
        """Normalised images [N, C, H, W] as 8-bit pixels: rounded, and cut where they leave the range."""
        shape = (1, -1, 1, 1)
        mean, std = (np.array(values, dtype=np.float32).reshape(shape) for values in (self.mean, self.std))
        return np.clip(np.rint(images * std + mean), 0, WHITE).astype(np.uint8)

    def on(self, device: torch.device) -> DeviceNormalisation:
        """The same for tensors on a device."""
        import torch

        shape = (1, -1, 1, 1)
        return DeviceNormalisation(
            torch.tensor(self.mean, device=device).view(shape), torch.tensor(self.std, device=device).view(shape)
        )


@dataclass(frozen=True, eq=False)
class DeviceNormalisation:
    """Normalisation of tensors [N, C, H, W]; mean and std are tensors [1, C, 1, 1] on their device."""

    mean: torch.Tensor
    std: torch.Tensor

    def normalise_(self, pixels: torch.Tensor) -> torch.Tensor:
        """Float pixels from 0 to 255, normalised in place."""
        return pixels.sub_(self.mean).div_(self.std)

    def from_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels in [0, 1], normalised."""
        return (pixels * WHITE - self.mean) / self.std

    def from_unit(self, images: torch.Tensor) -> torch.Tensor:
        """Images in [-1, 1], as GANs make them, normalised."""
        return ((images + 1) * (WHITE / 2) - self.mean) / self.std

    def to_pixels(self, images: torch.Tensor) -> torch.Tensor:
        """Normalised images as pixels in [0, 1], cut where they leave the range."""
        return ((images * self.std + self.mean) / WHITE).clamp(0, 1)

    def limits(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The normalised values of black and white, per channel."""
        return -self.mean / self.std, (WHITE - self.mean) / self.std
