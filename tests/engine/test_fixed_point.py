import itertools

import numpy as np
import pytest
import torch

from raysim.engine.fixed_point import NotSummable, decode_mean, decode_sum, encode_mean, encode_sum


def test_mean_follows_the_formula_and_is_close_to_the_float_mean():
    draw = np.random.default_rng(0)
    vectors = draw.normal(0, 3, (7, 50)).astype(np.float32)
    weights = draw.integers(1, 100, 7)
    shares = weights / weights.sum()
    total = sum(encode_mean(torch.from_numpy(v), float(p)).numpy() for v, p in zip(vectors, shares, strict=True))
    wide = vectors.astype(np.float64)
    top = sum(np.rint(v * (p * 2.0**40)).astype(np.int64) for v, p in zip(wide, shares, strict=True))
    bottom = sum(int(np.rint(p * 2.0**40)) for p in shares)
    assert np.array_equal(decode_mean(total), (top / bottom).astype(np.float32))
    assert np.allclose(decode_mean(total), np.average(vectors, axis=0, weights=weights), rtol=1e-6, atol=1e-9)


def test_every_order_and_grouping_gives_the_same_bits():
    vectors = torch.randn(5, 1000, generator=torch.Generator().manual_seed(0)) * 100
    terms = [encode_mean(v, 0.2).numpy() for v in vectors]
    results = {decode_mean(sum(order)).tobytes() for order in itertools.permutations(terms)}
    results.add(decode_mean((terms[3] + terms[0]) + (terms[4] + (terms[1] + terms[2]))).tobytes())
    assert len(results) == 1


def test_equal_weights_come_back_unchanged_and_missing_clients_renormalise():
    vector = torch.randn(100)
    term = encode_mean(vector, 0.25).numpy()
    assert np.array_equal(decode_mean(term), decode_mean(4 * term))
    assert np.allclose(decode_mean(term), vector.numpy(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e6])
def test_what_cannot_be_summed_is_refused(bad):
    vector = torch.tensor([1.0, bad])
    with pytest.raises(NotSummable):
        encode_mean(vector, 0.1)
    with pytest.raises(NotSummable):
        encode_sum(vector * 1e6, clients=10)


def test_the_largest_allowed_values_do_not_overflow():
    clients = 1000
    limit = torch.full((3,), 2.0**21 - 1)
    total = sum(encode_mean(limit, 1 / clients).numpy() for _ in range(clients))
    assert np.allclose(decode_mean(total), limit.numpy())
    part = torch.full((3,), -(2.0**32) / clients * 0.999)
    total = sum(encode_sum(part, clients).numpy() for _ in range(clients))
    assert np.allclose(decode_sum(total), part.numpy() * clients)


def test_nothing_added_is_an_error():
    with pytest.raises(NotSummable, match="no weight"):
        decode_mean(encode_mean(torch.ones(2), 0.0).numpy())
