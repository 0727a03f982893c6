"""Runs a configuration undisturbed, then while things are killed on a seeded schedule, and compares what came out.

`make chaos`, or python -m tests.faults.chaos [--only NAME …] [--seed N]; the quick version is test_chaos.py.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.faults import anyone, clusters, killed, misbehaving
from tests.faults.harness import Lab, Outcome

SCENARIOS = {
    "clients": killed.clients,
    "server": killed.server,
    "driver": killed.driver,
    "nodes": clusters.nodes,
    "flaky": misbehaving.flaky,
    "hangs": misbehaving.hangs,
    "rpc": clusters.rpc,
    "head": clusters.head,
    "store": clusters.store,
    "memory": clusters.memory,
    "policies": misbehaving.policies,
    "anyone": anyone.anyone,
}


def conduct(scenario, folder: Path, seed: int = 0, **counts) -> Outcome:
    """A scenario from its first process to the last one's end."""
    folder.mkdir(parents=True)
    lab = Lab(folder, seed)
    try:
        outcome = scenario(lab, **counts)
    except (RuntimeError, OSError, LookupError, psutil.Error, StopIteration) as error:
        outcome = Outcome("–", problems=[f"{type(error).__name__}: {error}"])
    finally:
        left = lab.close()
    outcome.problems += left
    return outcome


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    # A shell's background job ignores Ctrl-C, and all it starts would; what has a handler is reset in those.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="raysim-chaos-"))
    rows, failed = [], []
    for name in asked.only:
        say(f"{name}: {SCENARIOS[name].__doc__.splitlines()[0]}")
        began = time.monotonic()
        outcome = conduct(SCENARIOS[name], folder / name, asked.seed)
        rows.append(outcome.row(name))
        failed += [name] * bool(outcome.problems)
        for remark in outcome.remarks:
            say(f"    {remark}")
        for problem in outcome.problems:
            say(f"    PROBLEM: {problem}")
        say(f"    {rows[-1]}  {time.monotonic() - began:.0f} s")
    say("\n| scenario | faults | recovery: median s | worst s | clients repeated | rounds repeated | equal |")
    say("\n".join(["|---|---|---|---|---|---|---|", *rows]))
    if failed:
        say(f"\nfailed: {', '.join(failed)}; everything is in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
