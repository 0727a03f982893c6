"""Exact sums in fixed point: values become whole multiples of 2^-bits, which add up to the same in any order.

The mean of the clients' weights is Σ rint(p·w·2^40) / Σ rint(p·2^40), in int64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # the server, which decodes, does without
    import torch

MEAN_BITS = 40
MEAN_LIMIT = 2.0**21  # of |w|: the shares p add up to about one, so the sum stays below 2^62
SUM_BITS = 30  # of the parts' sums, whose terms have no share: steps of 1e-9, sums up to SUM_LIMIT
SUM_LIMIT = 2.0**32


class NotSummable(ValueError):
    """A value that is not finite or too large for the fixed-point range."""


def _encode(values: torch.Tensor, scale: float, bits: int, limit: float) -> torch.Tensor:
    largest = values.abs().max().item() if values.numel() else 0.0
    if not largest < limit:  # also when it is not a number
        raise NotSummable(f"holds {largest:.3g}; the exact sum takes finite values below {limit:.3g}")
    values = values.cpu() if values.device.type == "mps" else values  # Apple's GPUs have no double precision
    return values.double().mul_(scale * 2.0**bits).round_().long()


def encode_mean(vector: torch.Tensor, share: float) -> torch.Tensor:
    """A client's term of the mean; the extra last element sums the shares (its weight ÷ the cohort's total)."""
    encoded = _encode(vector, share, MEAN_BITS, MEAN_LIMIT)
    total = encoded.new_empty(len(encoded) + 1)
    total[:-1] = encoded
    total[-1] = int(np.rint(share * 2.0**MEAN_BITS))
    return total


def decode_mean(total: np.ndarray) -> np.ndarray:
    """The mean, as float32, from the added terms."""
    if total[-1] <= 0:
        raise NotSummable("has no weight at all")
    return (total[:-1] / total[-1]).astype(np.float32)


def encode_sum(values: torch.Tensor, clients: int) -> torch.Tensor:
    """A client's term of a part's sum over at most so many clients."""
    return _encode(values, 1.0, SUM_BITS, SUM_LIMIT / clients)


def decode_sum(total: np.ndarray) -> np.ndarray:
    """The sum, as float32, from the added terms."""
    return np.asarray(total / 2.0**SUM_BITS, dtype=np.float32)
