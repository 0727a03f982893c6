"""The golden hashes of this kind of device, where they are known."""

import json
from functools import cache

import pytest

from tests.golden import device, hashes, path_of, runs

RUNS = runs()


@cache
def known() -> dict[str, dict]:
    path = path_of(device())
    if not path.exists():
        pytest.skip(f"no golden hashes for this device ({device()}); `make golden` on an unchanged checkout adds them")
    return json.loads(path.read_text())["hashes"]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_ends_in_its_golden_hashes(name):
    if name not in known():
        pytest.fail(f"{name} has no golden hashes; `make golden` adds them")
    assert hashes(RUNS[name]) == known()[name]


def test_no_golden_hash_is_of_a_run_that_is_gone():
    assert sorted(known()) == sorted(RUNS)
