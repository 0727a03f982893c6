"""Normal noise drawn on the device itself by a counter-based generator: the same numbers on every device.

For noise of the size of a model in every step, which would take longer to upload than to make. Element i is a function
of the key and i alone: SplitMix64's mixing of a counter (Steele et al., 2014) gives 64 random bits, and the
transformation of Box and Muller two normal numbers. That is done in double precision, so that devices whose logarithms
and cosines differ in the last bit still agree once rounded to single.
"""

import math

import torch

_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # SplitMix64's constants


def normal_noise(key: int, first: int, count: int, device: torch.device) -> torch.Tensor:
    """Return the elements `first` to `first + count` of the key's normal numbers, as float32 on the device."""
    pairs = torch.arange(first // 2, (first + count + 1) // 2, device=device)
    # Mixed by itself first: else the next key's numbers would be this one's, a pair further on.
    start = int(_mixed(torch.tensor(_signed(key * _STEP + _STEP))))
    bits = _mixed(pairs * _signed(_STEP) + start)
    radius = ((_shifted(bits, 32).double() + 0.5) * 2.0**-32).log_().mul_(-2).sqrt_()
    angle = (bits & 0xFFFFFFFF).double() * (2 * math.pi * 2.0**-32)
    both = torch.stack([radius * angle.cos(), radius * angle.sin()], 1).flatten()
    return both[first % 2 :][:count].float()


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    """Return 64 bits of which each depends on all; whole numbers wrap around at 64 bits on every device."""
    bits = (bits ^ _shifted(bits, 30)) * _signed(_FIRST)
    bits = (bits ^ _shifted(bits, 27)) * _signed(_SECOND)
    return bits ^ _shifted(bits, 31)


def _shifted(bits: torch.Tensor, places: int) -> torch.Tensor:
    """Shift to the right and fill with zeros: torch's own shift repeats the sign."""
    return (bits >> places) & ((1 << (64 - places)) - 1)


def _signed(number: int) -> int:
    """Return the number's lowest 64 bits as torch's int64."""
    number &= 2**64 - 1
    return number - 2**64 if number >= 2**63 else number
