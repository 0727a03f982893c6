"""Distances of distributions, each against its formula written out with loops, or worked out by hand."""

import itertools

import numpy as np
import pytest
import torch
from scipy import linalg

from raysim.measures.distributions import density_coverage, frechet_distance, kernel_distance, precision_recall

DRAW = np.random.default_rng(0)


def tensor(values) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def vectors(count: int, size: int, shift: float = 0.0) -> torch.Tensor:
    return tensor(DRAW.normal(shift, 1 + abs(shift), (count, size)) @ DRAW.normal(0, 1, (size, size)))


def distance(a, b) -> float:
    return float(np.sqrt(sum((p - q) ** 2 for p, q in zip(a.tolist(), b.tolist(), strict=True))))


@pytest.mark.parametrize(("first", "second", "size"), [(40, 30, 5), (7, 9, 20), (12, 12, 12)])
def test_frechet_distance_is_its_formula_with_a_matrix_root(first, second, size):
    x, y = vectors(first, size), vectors(second, size, 0.7)
    s, r = np.cov(x.numpy().T), np.cov(y.numpy().T)
    root = linalg.sqrtm(s @ r + 0j).real
    wanted = ((x.mean(0) - y.mean(0)) ** 2).sum().item() + np.trace(s) + np.trace(r) - 2 * np.trace(root)
    assert frechet_distance(x, y) == pytest.approx(wanted, rel=1e-6)
    assert frechet_distance(y, x) == pytest.approx(wanted, rel=1e-6)
    assert frechet_distance(x, x) == pytest.approx(0, abs=1e-9)


def test_frechet_distance_of_one_coordinate_by_hand():
    """Means 2 and 5, standard deviations 2 and 4: 3² + 2²."""
    x, y = tensor([[0.0], [2.0], [4.0]]), tensor([[1.0], [5.0], [9.0]])
    assert frechet_distance(x, y) == pytest.approx(9 + 4)


def test_kernel_distance_pair_by_pair():
    x, y = vectors(6, 3), vectors(5, 3, 0.5)

    def kernel(a, b):
        return (sum((a * b).tolist()) / 3 + 1) ** 3

    within = [
        np.mean([kernel(a, b) for i, a in enumerate(each) for j, b in enumerate(each) if i != j]) for each in (x, y)
    ]
    between = np.mean([kernel(a, b) for a in x for b in y])
    assert kernel_distance(x, y) == pytest.approx(sum(within) - 2 * between)


def test_kernel_distance_is_unbiased():
    """Of two halves of one set it is 0 on average over all ways to halve it, however few the vectors are."""
    points = vectors(6, 2)
    halves = [set(half) for half in itertools.combinations(range(6), 3)]
    each = [kernel_distance(points[sorted(h)], points[sorted(set(range(6)) - h)]) for h in halves]
    assert np.mean(each) == pytest.approx(0, abs=1e-9)
    assert min(each) < 0 < max(each)


def test_precision_and_recall_by_hand():
    """Real 0, 1, 2, 10 and made 1.5, 3.5, 30 on a line, with balls to the nearest neighbour: 1, 1, 1, 8; 2, 2, 26.5."""
    real, made = tensor([[0.0], [1.0], [2.0], [10.0]]), tensor([[1.5], [3.5], [30.0]])
    # 1.5 lies in the ball of 1, and 3.5 in that of 10; 0, 1 and 2 lie in that of 1.5, and 10 in that of 30.
    assert precision_recall(real, made, neighbours=1) == (2 / 3, 1.0)


def test_a_vector_on_the_border_of_a_ball_is_in_it():
    """Balls of 1 around 0 and 1, and of 2 around 2 and 4: 2 is in that of 1, and 0 and 1 are in that of 2."""
    real, made = tensor([[0.0], [1.0]]), tensor([[2.0], [4.0]])
    assert precision_recall(real, made, neighbours=1) == (0.5, 1.0)
    assert density_coverage(real, made, neighbours=1) == (0.5, 0.5)


def brute(real, made, neighbours):
    """Precision, recall, density and coverage from their definitions."""

    def radius(points, i):
        return sorted(distance(points[i], p) for j, p in enumerate(points) if j != i)[neighbours - 1]

    of_real, of_made = ([radius(points, i) for i in range(len(points))] for points in (real, made))
    inside = [[distance(r, m) <= of_real[i] for m in made] for i, r in enumerate(real)]
    precision = np.mean([any(row[j] for row in inside) for j in range(len(made))])
    recall = np.mean([any(distance(r, m) <= of_made[j] for j, m in enumerate(made)) for r in real])
    return precision, recall, sum(map(sum, inside)) / (neighbours * len(made)), np.mean([any(row) for row in inside])


@pytest.mark.parametrize("neighbours", [1, 3])
def test_manifolds_are_their_definitions(neighbours):
    draw = np.random.default_rng(1)
    real, made = tensor(draw.normal(0, 1, (14, 2))), tensor(draw.normal(0.8, 1, (11, 2)))
    found = (*precision_recall(real, made, neighbours), *density_coverage(real, made, neighbours))
    assert found == pytest.approx(brute(real, made, neighbours))
    assert len({*found}) > 2


def test_what_the_measures_are_for():
    """Copies of one image are precise and dense but cover nothing; far noise is neither."""
    real = vectors(200, 8)
    other = vectors(200, 8)
    same = real + 0.01 * tensor(DRAW.normal(0, 1, (200, 8)))
    one = real[:1] + 1e-3 * tensor(DRAW.normal(0, 1, (200, 8)))
    far = other + 1000
    assert density_coverage(real, same)[1] > 0.95
    assert precision_recall(real, one)[0] == 1
    assert precision_recall(real, one)[1] < 0.05
    assert density_coverage(real, one)[1] < 0.2
    assert (*precision_recall(real, far), *density_coverage(real, far)) == (0, 0, 0, 0)
    assert frechet_distance(real, same) < frechet_distance(real, one) < frechet_distance(real, far)
    assert kernel_distance(real, same) < kernel_distance(real, far)
