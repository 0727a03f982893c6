"""Exact sums in fixed point: values become whole multiples of 2^-bits, which add up to the same in any order.

The mean of the clients' weights is Σ rint(p·w·2^40) / Σ rint(p·2^40), in int64. On the CPU everything goes block by
block, so that what is between the values and the sum stays in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # the server, which decodes, does without
    import torch

MEAN_BITS = 40
MEAN_LIMIT = 2.0**21  # of |w|: the shares p add up to about one, so the sum stays below 2^62
SHARE_STEP = 2.0**-MEAN_BITS  # in which a client's share is rounded
BOUND_BITS = 32  # 2^31 clients can add their bounds
SUM_BITS = 30  # of the parts' sums, whose terms have no share: steps of 1e-9, sums up to SUM_LIMIT
SUM_LIMIT = 2.0**32
BLOCK = 1 << 16  # values at a time: half a megabyte as float64
# A float64 near this has steps of 1: adding it rounds as rint does, and the whole number is in its last bits.
ROUNDING = 1.5 * 2.0**52
ROUNDING_BITS = int(np.float64(ROUNDING).view(np.int64))
ROUNDING_LIMIT = 2.0**51  # of what it can be added to


class NotSummable(ValueError):
    """A value that is not finite or too large for the fixed-point range."""


class Overweight(ValueError):
    """Weights so far from the planned ones that the sum cannot be exact; the text is what they weigh."""


@dataclass(frozen=True, eq=False)
class Term:
    """One client's term of an exact sum: its values have been checked, and are encoded when they are added."""

    values: torch.Tensor  # must stay as they are until then
    largest: float  # of their absolute values
    factor: float
    tail: tuple[int, int] | None = None  # of a mean, extra last elements of the sum: see `mean_term`

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the sum."""
        return tuple(self.values.shape) if self.tail is None else (self.values.numel() + len(self.tail),)

    def kept(self) -> Term:
        """The same term, with values of its own."""
        return replace(self, values=self.values.clone())

    def add_to(self, total: torch.Tensor) -> None:
        """Encode the values and add them to the sum."""
        import torch

        flat, sums = self.values.detach().reshape(-1), total.view(-1)
        if flat.device.type == "cpu":
            of_numpy = flat if flat.dtype in (torch.float32, torch.float64) else flat.double()
            self._add_blocks(of_numpy.numpy(), sums.numpy())
        else:
            sums[: len(flat)].add_(flat.double().mul_(self.factor).round_().long())
        for place, number in enumerate(self.tail or (), len(flat)):
            sums[place] += number

    def _add_blocks(self, flat: np.ndarray, sums: np.ndarray) -> None:
        buffer = np.empty(min(BLOCK, flat.size))
        small = self.largest * self.factor < ROUNDING_LIMIT
        for start, stop in _blocks(flat.size, BLOCK):
            scaled = np.multiply(flat[start:stop], self.factor, out=buffer[: stop - start], dtype=np.float64)
            if small:
                scaled += ROUNDING
                whole = scaled.view(np.int64)
                whole -= ROUNDING_BITS
            else:
                whole = np.rint(scaled, out=scaled).astype(np.int64)
            sums[start:stop] += whole


def mean_term(vector: torch.Tensor, share: float) -> Term:
    """A client's term of the mean; its share is its weight ÷ the cohort's total, as planned.

    The sum ends with a bound of what was added, in units of 2^BOUND_BITS, and with the sum of the shares. The bound
    cannot leave the range of int64, and tells `decode_mean` whether another element may have.
    """
    scale = 2.0**MEAN_BITS
    term = _term(vector, MEAN_LIMIT, share * scale)
    most = max(term.largest, 1.0) * term.factor  # at least the share itself
    if not most < 2.0**62:
        raise Overweight(f"{share:.3g} times what all clients together were planned to")
    return replace(term, tail=((int(most) >> BOUND_BITS) + 1, int(np.rint(term.factor))))


def sum_term(values: torch.Tensor, clients: int) -> Term:
    """A client's term of a part's sum over at most so many clients."""
    return _term(values, SUM_LIMIT / clients, 2.0**SUM_BITS)


def _term(values: torch.Tensor, limit: float, factor: float) -> Term:
    largest = 0.0
    if values.numel():
        low, high = (bound.item() for bound in values.aminmax())
        largest = max(-low, high)  # both bounds are NaN where a value is
    if not largest < limit:
        raise NotSummable(f"holds {largest:.3g}; the exact sum takes finite values below {limit:.3g}")
    if values.device.type == "mps":  # Apple's GPUs have no double precision
        values = values.cpu()
    return Term(values, largest, factor)


class ExactSums:
    """The sums of a pass by name, to which clients' terms are added; their memory is kept for the next pass."""

    def __init__(self) -> None:
        self.totals: dict[str, torch.Tensor] = {}
        self.spare: dict[str, torch.Tensor] = {}

    def clear(self) -> None:
        """Start from nothing; what `totals` was until now is overwritten by the next terms."""
        self.spare |= self.totals
        self.totals = {}

    def add(self, terms: dict[str, Term]) -> None:
        """Add a client's terms; one of another shape than the first is left out, and the driver drops that pass."""
        for name, term in terms.items():
            if name not in self.totals:
                self.totals[name] = self._zeros(name, term)
            if self.totals[name].shape == term.shape:
                term.add_to(self.totals[name])

    def _zeros(self, name: str, term: Term) -> torch.Tensor:
        import torch

        spare = self.spare.pop(name, None)
        if spare is not None and spare.shape == term.shape:
            return spare.zero_()
        return torch.zeros(term.shape, dtype=torch.int64, device=term.values.device)


def add_up(sums: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """What several actors summed, added up by name; the arrays given stay as they are."""
    totals: dict[str, np.ndarray] = {}
    for one in sums:
        for name, total in one.items():
            if name in totals:
                totals[name] += total
            else:
                totals[name] = total.copy()
    return totals


def decode_mean(total: np.ndarray) -> np.ndarray:
    """The mean, as float32, from the added terms; an Overweight where there was nothing, or more than fits."""
    bound, share = total[-2:].tolist()
    if not bound < 2 ** (63 - BOUND_BITS):  # then the shares may be too much for int64, too
        raise Overweight(f"{bound * 2.0 ** (BOUND_BITS - MEAN_BITS):.1g} times what was planned, too much to be exact")
    if share <= 0:
        raise Overweight("nothing")
    return _divided(total[:-2], float(share))


def share_of(total: np.ndarray) -> float:
    """The sum of the shares of the terms of a mean."""
    return float(total[-1]) / 2.0**MEAN_BITS


def decode_sum(total: np.ndarray) -> np.ndarray:
    """The sum, as float32, from the added terms."""
    return _divided(total, 2.0**SUM_BITS)


def _divided(total: np.ndarray, divisor: float) -> np.ndarray:
    flat, result = total.reshape(-1), np.empty(total.size, dtype=np.float32)
    wide = np.empty(min(BLOCK, total.size))
    for start, stop in _blocks(total.size, BLOCK):
        result[start:stop] = np.divide(flat[start:stop], divisor, out=wide[: stop - start])
    return result.reshape(total.shape)


def _blocks(size: int, block: int) -> Iterator[tuple[int, int]]:
    for start in range(0, size, block or 1):
        yield start, min(start + block, size)
