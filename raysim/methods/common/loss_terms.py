"""Terms of a local loss that depend on the weights alone, with their gradients, for `Part.pull`."""

import torch
from torch import Tensor


def towards(weights: Tensor, start: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """Return strength/2·‖w − w_t‖² and its gradient for every row."""
    apart = weights - start
    gradient = strength * apart
    # ½⟨w − w_t, gradient⟩ in one operation; with beta 0 what would be added to it is ignored.
    value = torch.baddbmm(apart[:, :1, None], apart[:, None], gradient[:, :, None], beta=0, alpha=0.5)
    return value[:, 0, 0], gradient


def in_rows(vectors: list[Tensor]) -> Tensor:
    """Return the clients' vectors as rows of a matrix; a vector alone is not copied."""
    return torch.stack(vectors) if len(vectors) > 1 else vectors[0][None]
