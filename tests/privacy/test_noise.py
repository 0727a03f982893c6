"""Noise that the device draws: normal, independent, and a function of the key and the place alone."""

import numpy as np
import torch
from scipy import stats

from raysim.privacy.noise import normal_noise

CPU = torch.device("cpu")


def mixed(bits: int) -> int:
    """SplitMix64's mixing, in whole numbers of Python."""
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) % 2**64
    return bits ^ (bits >> 31)


def test_against_whole_numbers_of_python():
    key, step = 2**62 + 12345, 0x9E3779B97F4A7C15
    expected = []
    for pair in range(3, 6):
        expected += pair_of(mixed((mixed((key + 1) * step % 2**64) + pair * step) % 2**64))
    np.testing.assert_allclose(normal_noise(key, 6, 6, CPU), expected, rtol=1e-6)


def pair_of(bits: int) -> list[float]:
    """The transformation of Box and Muller."""
    radius = np.sqrt(-2 * np.log(((bits >> 32) + 0.5) / 2**32))
    angle = 2 * np.pi * (bits % 2**32) / 2**32
    return [radius * np.cos(angle), radius * np.sin(angle)]


def test_a_uniform_number_next_to_1_has_all_its_bits():
    """In single precision it would be 1, and both numbers exactly 0."""
    pair, step = 1_597_458, 0x9E3779B97F4A7C15  # found by search
    bits = mixed((mixed(2 * step % 2**64) + pair * step) % 2**64)
    assert bits >> 32 == 2**32 - 20
    np.testing.assert_allclose(normal_noise(1, 2 * pair, 2, CPU), pair_of(bits), rtol=1e-6)


def test_it_is_normal_and_keys_are_independent():
    one, other = (normal_noise(key, 0, 200_000, CPU).numpy() for key in (1, 2))
    assert stats.kstest(one, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.01
    for apart in (1, 2, 4):  # nor is one the other, moved by an element or a pair
        assert abs(np.corrcoef(one[apart:], other[:-apart])[0, 1]) < 0.01
        assert abs(np.corrcoef(one[:-apart], other[apart:])[0, 1]) < 0.01
    assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 0.01
    assert abs(np.corrcoef(np.abs(one[::2]), np.abs(one[1::2]))[0, 1]) < 0.01


def test_a_piece_is_that_piece_of_the_whole():
    whole = normal_noise(7, 0, 100, CPU)
    for first, count in [(0, 1), (3, 5), (40, 60), (99, 1)]:
        assert torch.equal(normal_noise(7, first, count, CPU), whole[first : first + count])
