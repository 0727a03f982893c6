"""What `python -m tests.gpu` finds: every method on the pretended device, seeded mistakes, the table of counts."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from raysim import methods
from tests.gpu import counted, known
from tests.gpu.operations import DETERMINISTIC

pytestmark = pytest.mark.timeout(1600)  # for a machine that does much else; alone it takes a minute and a half

ROOT = Path(__file__).parents[2]
WRITE = "`python -m tests.gpu --write` lowers the table"


@cache
def found() -> dict[str, Any]:
    """In processes of their own, since a device, once registered, stays; two of them, since it takes its time."""
    command = [sys.executable, "-m", "tests.gpu"]
    halves = [
        subprocess.Popen([*command, f"--{i}", "--2"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for i in (0, 1)
    ]
    ended = [half.communicate(timeout=1500) for half in halves]
    assert [half.returncode for half in halves] == [0, 0], [words.decode() for _, words in ended]
    first, second = (json.loads(words) for words, _ in ended)
    return {kind: first[kind] | second[kind] for kind in first}


def test_every_run_is_bit_for_bit_the_cpus():
    """Training, fused or not, synthesis, evaluation, attacks, the server's updates, checkpoints: on the device."""
    runs = found()["runs"]
    assert {name.split(" --fuse ")[0] for name in runs} >= set(methods.names())
    assert {name: one["error"] or one["differs"] for name, one in runs.items() if one["error"] or one["differs"]} == {}


@pytest.mark.parametrize("what", ["transfers", "waits"])
def test_nothing_is_copied_and_nobody_waits_inside_a_step(what):
    """Beyond what the table still allows."""
    assert _above(what) == {}, {name: one["places"] for name, one in found()["runs"].items() if one["places"]}


def test_no_step_launches_more_than_it_did():
    assert _above("launches") == {}


def _above(what: str) -> dict[str, str]:
    """The steps whose count is not that of the table."""
    table, now = known(), counted(found()["runs"])
    assert sorted(table) == sorted(now), f"runs came or went: {WRITE}"
    unequal = {}
    for name, kinds in now.items():
        for kind, counts in kinds.items():
            allowed = table[name].get(kind, {}).get(what)
            if allowed is None or counts[what] != allowed:
                fell = f"; {WRITE}" if allowed is None or counts[what] < allowed else ""
                unequal[f"{name}, {kind}"] = f"{counts[what]}, and the table has {allowed}{fell}"
    return unequal


def test_every_operation_was_looked_up():
    used = {operation: name for name, one in found()["runs"].items() for operation in one["operations"]}
    unknown = {operation: name for operation, name in used.items() if operation not in DETERMINISTIC}
    assert unknown == {}, "look up whether CUDA does them deterministically, and add them to tests/gpu/operations.py"


def test_seeded_mistakes_are_caught():
    caught = found()["mistakes"]
    assert len(caught) == 6
    assert [what for what, shown in caught.items() if not shown] == []
