import itertools

import numpy as np
import pytest
import torch

from raysim.engine import fixed_point
from raysim.engine.fixed_point import (
    ExactSums,
    NotSummable,
    Overweight,
    Term,
    add_up,
    decode_mean,
    decode_sum,
    mean_term,
    sum_term,
)


def encoded(term: Term) -> np.ndarray:
    """The term alone, as a sum."""
    sums = ExactSums()
    sums.add({"term": term})
    return sums.totals["term"].numpy()


def test_mean_follows_the_formula_and_is_close_to_the_float_mean():
    draw = np.random.default_rng(0)
    vectors = draw.normal(0, 3, (7, 50)).astype(np.float32)
    weights = draw.integers(1, 100, 7)
    shares = weights / weights.sum()
    total = sum(encoded(mean_term(torch.from_numpy(v), float(p))) for v, p in zip(vectors, shares, strict=True))
    wide = vectors.astype(np.float64)
    top = sum(np.rint(v * (p * 2.0**40)).astype(np.int64) for v, p in zip(wide, shares, strict=True))
    bottom = sum(int(np.rint(p * 2.0**40)) for p in shares)
    assert np.array_equal(decode_mean(total), (top / bottom).astype(np.float32))
    assert np.allclose(decode_mean(total), np.average(vectors, axis=0, weights=weights), rtol=1e-6, atol=1e-9)


def test_every_order_and_grouping_gives_the_same_bits():
    vectors = torch.randn(5, 1000, generator=torch.Generator().manual_seed(0)) * 100
    terms = [encoded(mean_term(v, 0.2)) for v in vectors]
    results = {decode_mean(sum(order)).tobytes() for order in itertools.permutations(terms)}
    results.add(decode_mean((terms[3] + terms[0]) + (terms[4] + (terms[1] + terms[2]))).tobytes())
    assert len(results) == 1


def test_equal_weights_come_back_unchanged_and_missing_clients_renormalise():
    vector = torch.randn(100)
    term = encoded(mean_term(vector, 0.25))
    assert np.array_equal(decode_mean(term), decode_mean(4 * term))
    assert np.allclose(decode_mean(term), vector.numpy(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e6])
def test_what_cannot_be_summed_is_refused(bad):
    vector = torch.tensor([1.0, bad])
    with pytest.raises(NotSummable):
        mean_term(vector, 0.1)
    with pytest.raises(NotSummable):
        sum_term(vector * 1e6, clients=10)


def test_the_largest_allowed_values_do_not_overflow():
    clients = 1000
    limit = torch.full((3,), 2.0**21 - 1)
    total = sum(encoded(mean_term(limit, 1 / clients)) for _ in range(clients))
    assert np.allclose(decode_mean(total), limit.numpy())
    part = torch.full((3,), -(2.0**32) / clients * 0.999)
    total = sum(encoded(sum_term(part, clients)) for _ in range(clients))
    assert np.allclose(decode_sum(total), part.numpy() * clients)


def test_nothing_added_is_an_error():
    with pytest.raises(Overweight, match="nothing"):
        decode_mean(encoded(mean_term(torch.ones(2), 0.0)))


@pytest.mark.parametrize(("share", "value"), [(0.9, 2.0**21 - 1), (1e3, 1.0), (1e5, 0.01), (2.0**18, 0.0)])
def test_a_sum_that_may_have_left_int64_is_refused_and_no_other(share, value):
    """Doubled until it is: up to there the mean is right, and beyond it no wrapped sum looks sound."""
    vector = torch.full((3,), value)
    total, exact = encoded(mean_term(vector, share)), share * max(value, 1.0) * 2.0**40
    while exact < 2.0**63:
        np.testing.assert_allclose(decode_mean(total), vector, rtol=1e-6)
        total, exact = total + total, 2 * exact
    for _ in range(5):
        with pytest.raises(Overweight, match="too much to be exact"):
            decode_mean(total)
        total = total + total


def test_a_term_that_could_not_be_added_at_all_is_refused():
    with pytest.raises(Overweight, match=r"1e\+09 times what all clients together were planned to"):
        mean_term(torch.ones(3), 1e9)


def test_blocks_change_no_bit(monkeypatch):
    """Values of several blocks, the last one not full, against the formula over all of them at once."""
    monkeypatch.setattr(fixed_point, "BLOCK", 64)
    draw = np.random.default_rng(1)
    vectors = draw.normal(0, 100, (3, 1000)).astype(np.float32)
    sums = ExactSums()
    for vector in vectors:
        tensor = torch.from_numpy(vector)
        sums.add({"mean": mean_term(tensor, 0.3), "sum": sum_term(tensor.view(10, 100), 3)})
    wide = vectors.astype(np.float64)
    mean = np.rint(wide * (0.3 * 2.0**40)).astype(np.int64).sum(0)
    share = 3 * int(np.rint(0.3 * 2.0**40))
    found = sums.totals["mean"].numpy()
    assert np.array_equal(np.delete(found, -2), [*mean, share])
    assert np.abs(vectors).max(1).sum() * 0.3 * 2.0**40 < found[-2] * 2.0**32 < 2**63
    assert np.array_equal(decode_mean(sums.totals["mean"].numpy()), (mean / share).astype(np.float32))
    total = np.rint(wide * 2.0**30).astype(np.int64).sum(0).reshape(10, 100)
    assert np.array_equal(sums.totals["sum"].numpy(), total)
    assert np.array_equal(decode_sum(total), (total / 2.0**30).astype(np.float32))


@pytest.mark.parametrize("scale", [1.0, 2.0**5, 2.0**10])
def test_both_ways_of_rounding_give_rint(scale):
    """Ties, both signs, and values on either side of where the quick way ends."""
    ties = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.0, 3.0, 0.49999997], dtype=torch.float64) * 2.0**-30
    edges = torch.tensor([1.0, -1.0, 0.99999994]) * 2.0**21 * scale
    draw = torch.randn(1000, generator=torch.Generator().manual_seed(1)) * scale
    for values in (ties, ties.float(), edges, draw, draw.double(), draw.half(), draw.bfloat16()):
        expected = np.rint(values.double().numpy() * 2.0**30).astype(np.int64)
        assert np.array_equal(encoded(sum_term(values, 1)), expected), values.dtype


def test_numbers_other_than_vectors_are_summed_too():
    sums = ExactSums()
    for _ in range(2):
        sums.add({"one": sum_term(torch.tensor(1.5), 2), "counts": sum_term(torch.tensor([[1, 2], [3, 4]]), 2)})
        sums.add({"none": sum_term(torch.empty(0, 3), 2)})
    decoded = {name: decode_sum(total.numpy()) for name, total in sums.totals.items()}
    assert decoded["one"].shape == ()
    assert decoded["one"] == 3.0
    assert decoded["counts"].tolist() == [[2, 4], [6, 8]]
    assert decoded["none"].shape == (0, 3)


def test_memory_is_used_again_and_starts_from_nothing():
    sums = ExactSums()
    sums.add({"a": sum_term(torch.ones(4), 1), "b": sum_term(torch.ones(2), 1)})
    first = sums.totals["a"]
    sums.clear()
    assert sums.totals == {}
    sums.add({"a": sum_term(torch.full((4,), 2.0), 1), "b": sum_term(torch.ones(3), 1)})
    assert sums.totals["a"] is first
    assert decode_sum(sums.totals["a"].numpy()).tolist() == [2.0] * 4
    assert sums.totals["b"].shape == (3,)


def test_a_term_of_another_shape_is_left_out():
    sums = ExactSums()
    sums.add({"a": sum_term(torch.ones(2), 2)})
    sums.add({"a": sum_term(torch.ones(3), 2)})
    assert decode_sum(sums.totals["a"].numpy()).tolist() == [1.0, 1.0]


def test_a_kept_term_does_not_follow_its_values():
    values = torch.ones(3)
    term = sum_term(values, 1).kept()
    values.fill_(5.0)
    assert decode_sum(encoded(term)).tolist() == [1.0] * 3


def test_sums_of_several_actors_are_added_by_name_and_stay_as_they_are():
    sums = [{"a": np.array([1, 2])}, {"a": np.array([10, 20]), "b": np.array([7])}, {"a": np.array([100, 200])}]
    assert {name: total.tolist() for name, total in add_up(sums).items()} == {"a": [111, 222], "b": [7]}
    assert sums[0]["a"].tolist() == [1, 2]
    assert add_up([]) == {}
