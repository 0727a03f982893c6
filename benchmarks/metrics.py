"""What reporting metrics costs: processor time of a round with and without, of all processes, Ray's included.

    python -m benchmarks.metrics --out docs/benchmarks.md

Two runs of one configuration, each on its own Ray, one with `--no-metrics`; they take turns round by round, and who
goes first alternates. Ray hands metrics on every 10 s, in whosever turn: so processor time is taken over blocks of
rounds, waiting included, and the interval is that of the blocks' differences.
"""

import argparse
import json
import math
import statistics
from pathlib import Path

from benchmarks.report import machine, publish, spread, table
from benchmarks.turns import Side, here, tree_cpu
from benchmarks.workloads import PROCESSES, Workload

WARM_UP = 2


def measure(workload: Workload, blocks: int, rounds: int) -> tuple[list[float], list[float]]:
    """Processor seconds of each block of rounds: with metrics, and without."""
    sides = {}
    try:
        for name, on in (("with metrics", True), ("without", False)):
            command = here("ours", workload.to_json(), "--settings", json.dumps({"metrics": on}))
            sides[name] = Side(name, command, sampled=False)
        for side in sides.values():
            for _ in range(WARM_UP):
                side.warm_up()
        found: dict[str, list[float]] = {name: [] for name in sides}
        for block in range(blocks):
            before = {name: tree_cpu(side.process.pid) for name, side in sides.items()}
            for i in range(rounds):
                for _, side in sorted(sides.items(), reverse=bool((block + i) % 2)):
                    side.round()
            for name, side in sides.items():
                found[name].append(tree_cpu(side.process.pid) - before[name])
    finally:
        for side in sides.values():
            side.stop()
    return found["with metrics"], found["without"]


def interval(differences: list[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval (normal: the blocks are many)."""
    mean = statistics.fmean(differences)
    return mean, 1.96 * statistics.stdev(differences) / math.sqrt(len(differences))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=10, help="in a block")
    parser.add_argument("--clients", type=int, default=20, help="all of them active")
    parser.add_argument("--samples", type=int, default=100, help="of each client")
    parser.add_argument("--out", type=Path, help="file to put the section into")
    asked = parser.parse_args(arguments)
    workload = Workload("metrics", "small-cnn", (1, 28, 28), asked.clients, asked.samples, asked.clients, 0)
    on, off = measure(workload, asked.blocks, asked.rounds)
    mean, half = interval([100 * (a - b) / b for a, b in zip(on, off, strict=True)])
    rows = [[name, spread([s / asked.rounds for s in found])] for name, found in (("with", on), ("without", off))]
    text = [
        "## Metrics",
        f"`python -m benchmarks.metrics`: {asked.clients} clients of {asked.samples} samples, small-cnn, {PROCESSES} "
        f"actors; {asked.blocks} blocks of {asked.rounds} rounds, in turns. CPU seconds of a round, all processes; "
        "medians of blocks, lowest to highest in brackets. With metrics a round takes "
        f"**{mean:+.2f} % ± {half:.2f} %** (95 %) more.",
        table(["metrics", "CPU s per round"], rows),
        machine(),
    ]
    publish("metrics", "\n\n".join(text), asked.out)


if __name__ == "__main__":
    main()
