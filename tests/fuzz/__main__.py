"""`make fuzz`: cases by their seeds, and own parts and damaged runs, 2 of each for 5 of them; what they ended in.

python -m tests.fuzz [--cases 5000] [--first SEED]; slices with other seeds make one whole. `--cases 1` does one again.
"""

import argparse
import sys
from time import perf_counter

from tests.fuzz.fuzzer import fuzz
from tests.fuzz.own_parts import own_part_case
from tests.storage import test_mutated_runs

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--cases", type=int, default=5000)
parser.add_argument("--first", type=int, default=1_000_000)
asked = parser.parse_args()
started = perf_counter()


def say(text: str) -> None:
    print(text, flush=True)


codes, failures, done = fuzz(asked.cases, asked.first, say=say)
ended = ", ".join(f"{number} with {code}" for code, number in sorted(codes.items(), key=str))
say(f"{done} cases in {perf_counter() - started:.0f} s: {ended}; {len(failures)} failures")
codes, more, done = fuzz(asked.cases * 2 // 5, asked.first, say=say, case=own_part_case)
ended = ", ".join(f"{number} with {code}" for code, number in sorted(codes.items(), key=str))
say(f"{done} cases with own parts: {ended}; {len(more)} failures")
damaged = test_mutated_runs.fuzz(asked.cases * 2 // 5, asked.first, say)
sys.exit(bool(failures or more or damaged))
