"""Some cases of the fuzzer, by seed; `make fuzz` runs thousands."""

import pytest

from tests.fuzz.fuzzer import fuzz
from tests.fuzz.own_parts import own_part_case

CASES, SECONDS = 200, 25


@pytest.mark.timeout(120)
def test_every_case_ends_in_a_result_or_in_one_line():
    codes, failures, done = fuzz(CASES, seconds=SECONDS)
    assert not failures, "\n".join(failures)
    assert codes[0]
    assert codes[2] > done // 3


@pytest.mark.timeout(120)
def test_an_own_part_that_makes_things_up_ends_in_a_result_or_in_one_line_and_goes_on_as_it_was():
    codes, failures, done = fuzz(CASES, seconds=SECONDS, case=own_part_case)
    assert not failures, "\n".join(failures)
    assert codes[0] > done // 3
    assert codes[1] > done // 10
