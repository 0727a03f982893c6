"""`make fuzz`: as many cases as FUZZ says, and what they ended in. `python -m tests.fuzz SEED` does one again."""

import os
import sys
from time import perf_counter

from tests.fuzz.fuzzer import fuzz

started = perf_counter()
first, count = (int(sys.argv[1]), 1) if len(sys.argv) > 1 else (1_000_000, int(os.environ.get("FUZZ", "5000")))
codes, failures, done = fuzz(count, first, say=lambda text: print(text, flush=True))
ended = ", ".join(f"{number} with {code}" for code, number in sorted(codes.items(), key=str))
print(f"{done} cases in {perf_counter() - started:.0f} s: {ended}; {len(failures)} failures")
sys.exit(bool(failures))
