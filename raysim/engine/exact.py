"""Exact sums: values become whole multiples of 2^-bits, so adding them gives the same result in any order.

The mean of the clients' weights is Σ rint(p·w·2^40) / Σ rint(p·2^40), in int64 (DESIGN, rule 2).
"""

import numpy as np
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
    return values.to(torch.float64).mul_(scale * 2.0**bits).round_().to(torch.int64)


def encode_mean(vector: torch.Tensor, share: float) -> torch.Tensor:
    """A client's term of the mean; the extra last element sums the shares (its weight ÷ the cohort's total)."""
    total = torch.empty(vector.numel() + 1, dtype=torch.int64, device=vector.device)
    total[:-1] = _encode(vector, share, MEAN_BITS, MEAN_LIMIT)
    total[-1] = int(np.rint(share * 2.0**MEAN_BITS))
    return total


def decode_mean(total: torch.Tensor) -> torch.Tensor:
    """The mean, as float32, from the added terms."""
    if total[-1].item() <= 0:
        raise NotSummable("has no weight at all")
    return (total[:-1].to(torch.float64) / total[-1].to(torch.float64)).to(torch.float32)


def encode_sum(values: torch.Tensor, clients: int) -> torch.Tensor:
    """A client's term of a part's sum over at most so many clients."""
    return _encode(values, 1.0, SUM_BITS, SUM_LIMIT / clients)


def decode_sum(total: torch.Tensor) -> torch.Tensor:
    """The sum, as float32, from the added terms."""
    return (total.to(torch.float64) / 2.0**SUM_BITS).to(torch.float32)
