"""Distances between two sets of feature vectors as distributions; rows are vectors, in double precision.

`real` are features of real images, `made` of made ones.
"""

import torch
from torch import Tensor

MANIFOLD_NEIGHBOURS = 3  # whose distance bounds a vector's ball in precision and recall, as in their paper
DENSITY_NEIGHBOURS = 5  # the same for density and coverage
FEWEST = DENSITY_NEIGHBOURS + 1  # vectors that every measure here can be computed from


def frechet_distance(real: Tensor, made: Tensor) -> float:
    """Return the squared Fréchet distance of two Gaussians with the sets' means and covariances (Heusel et al., 2017).

    It is ‖m − m′‖² + tr(S + S′ − 2(S S′)^½). With centred vectors X and X′, whose S is XᵀX/(n − 1), the last trace is
    the sum of the singular values of X X′ᵀ over √((n − 1)(n′ − 1)), or of the triangular factors of X and X′.
    """
    (x, first), (y, second) = ((each - each.mean(0), len(each) - 1) for each in (real, made))
    between = torch.linalg.svdvals(_triangular(x) @ _triangular(y).T).sum() / (first * second) ** 0.5
    spread = x.square().sum() / first + y.square().sum() / second
    apart = (real.mean(0) - made.mean(0)).square().sum()
    return max(0.0, float(apart + spread - 2 * between))


def _triangular(centred: Tensor) -> Tensor:
    return torch.linalg.qr(centred, mode="r").R


def kernel_distance(real: Tensor, made: Tensor) -> float:
    """Return the unbiased squared maximum mean discrepancy with the kernel (⟨x, y⟩/d + 1)³ (Bińkowski et al., 2018).

    It is about 0, and may be below, where the two sets come from one distribution, however few vectors there are.
    """
    size = real.shape[1]
    (inside, outside), between = (_mean_of_pairs((x @ x.T / size + 1) ** 3) for x in (real, made)), real @ made.T
    return float(inside + outside - 2 * ((between / size + 1) ** 3).mean())


def _mean_of_pairs(kernel: Tensor) -> Tensor:
    """Return the mean over pairs of two different vectors."""
    count = len(kernel)
    return (kernel.sum() - kernel.diagonal().sum()) / (count * (count - 1))


def precision_recall(real: Tensor, made: Tensor, neighbours: int = MANIFOLD_NEIGHBOURS) -> tuple[float, float]:
    """Return the share of made vectors among real ones, and of real ones among made (Kynkäänniemi et al., 2019).

    A vector is among others if it lies in the ball of one of them, which reaches to its k-th neighbour of its kind.
    """
    apart = squared_distances(real, made)
    among_real = apart <= _radii(real, neighbours)[:, None]
    among_made = apart <= _radii(made, neighbours)
    return float(among_real.any(0).double().mean()), float(among_made.any(1).double().mean())


def density_coverage(real: Tensor, made: Tensor, neighbours: int = DENSITY_NEIGHBOURS) -> tuple[float, float]:
    """Return the density and the coverage of made vectors (Naeem et al., 2020).

    Density counts in how many balls of real vectors a made one lies, divided by k; coverage is the share of balls that
    hold a made one. Both are about 1 where the two sets come from one distribution; density may be above.
    """
    inside = squared_distances(real, made) <= _radii(real, neighbours)[:, None]
    return float(inside.double().sum(0).mean() / neighbours), float(inside.any(1).double().mean())


def squared_distances(rows: Tensor, columns: Tensor) -> Tensor:
    """Return the squared distance of every vector of one set to every vector of the other."""
    lengths = rows.square().sum(1)[:, None] + columns.square().sum(1)
    return (lengths - 2 * rows @ columns.T).clamp(min=0)


def _radii(vectors: Tensor, neighbours: int) -> Tensor:
    """Return the squared distance of every vector to its k-th neighbour, itself not counted."""
    apart = squared_distances(vectors, vectors).fill_diagonal_(torch.inf)
    return apart.kthvalue(neighbours, dim=1).values
