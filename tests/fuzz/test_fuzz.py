"""Some cases of the fuzzer, by seed; `make fuzz` runs thousands."""

import pytest

from tests.fuzz.fuzzer import fuzz

CASES, SECONDS = 200, 25


@pytest.mark.timeout(120)
def test_every_case_ends_in_a_result_or_in_one_line():
    codes, failures, done = fuzz(CASES, seconds=SECONDS)
    assert not failures, "\n".join(failures)
    assert codes[0]
    assert codes[2] > done // 3
