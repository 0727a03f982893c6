"""What reporting metrics costs: processor time of a round with and without it, of all processes, including Ray's.

    python -m benchmarks.metrics --out docs/benchmarks.md

Pairs of runs of one configuration, each run on its own Ray, one of them with `--no-metrics`, take turns round by round.
The processor time of equal training varies more from process to process than metrics can cost. So the clients of these
runs have almost no samples, and each round is followed by a pause as long as a whole round. That gives as many calls,
metrics and exports by Ray (one every 10 s) per round as usual, with little else. What metrics add to such a round is
then compared with a round with all samples.
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path

from scipy.stats import t as student

from benchmarks.report import machine, publish, spread, table
from benchmarks.turns import Side, here, tree_cpu
from benchmarks.workloads import PROCESSES, Workload

WARM_UP = 20  # rounds, in which Ray's processes settle down
FEW_SAMPLES = 2


def start(workload: Workload, metrics: bool) -> Side:
    command = here("ours", workload.to_json(), "--settings", json.dumps({"metrics": metrics}))
    return Side("with metrics" if metrics else "without", command, sampled=False)


def whole_rounds(workload: Workload, rounds: int) -> tuple[float, float]:
    """Seconds and processor seconds of a round with all samples and no metrics: medians."""
    with start(workload, metrics=False) as side:
        found = [side.round() for _ in range(WARM_UP + rounds)][WARM_UP:]
    return statistics.median(r["seconds"] for r in found), statistics.median(r["cpu"] for r in found)


def pair(workload: Workload, rounds: int, pause: float, first: bool) -> dict[bool, float]:
    """Metrics or not -> processor seconds of a round. `first` says whether the run with metrics starts first."""
    sides = {}
    try:
        for metrics in (first, not first):
            sides[metrics] = start(workload, metrics)
        for i in range(WARM_UP + rounds):
            if i == WARM_UP:
                before = {metrics: tree_cpu(side.process.pid) for metrics, side in sides.items()}
            for metrics in (first, not first) if i % 2 else (not first, first):
                sides[metrics].round()
            time.sleep(pause)
        return {on: (tree_cpu(side.process.pid) - before[on]) / rounds for on, side in sides.items()}
    finally:
        for side in sides.values():
            side.stop()


def interval(differences: list[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval, by Student's t."""
    spread_of_mean = statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.fmean(differences), float(student.ppf(0.975, len(differences) - 1)) * spread_of_mean


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=150, help="of each run of a pair")
    parser.add_argument("--clients", type=int, default=20, help="all of them active")
    parser.add_argument("--samples", type=int, default=100, help="of each client, in a whole round")
    parser.add_argument("--out", type=Path, help="file to put the section into")
    asked = parser.parse_args(arguments)
    workload = Workload("metrics", "small-cnn", (1, 28, 28), asked.clients, asked.samples, asked.clients, 0)
    seconds, whole = whole_rounds(workload, min(20, asked.rounds))
    small = workload.resized(samples=FEW_SAMPLES)
    found = [pair(small, asked.rounds, seconds, first=bool(i % 2)) for i in range(asked.pairs)]
    more, half = interval([measured[True] - measured[False] for measured in found])
    sides = {"with": True, "without": False}
    rows = [[name, spread([1000 * measured[on] for measured in found], 1)] for name, on in sides.items()]
    text = [
        "## Metrics",
        f"`python -m benchmarks.metrics`: {asked.clients} clients, all active, small-cnn, {PROCESSES} actors. A round "
        f"of clients with {asked.samples} samples takes {seconds:.2f} s and {1000 * whole:.0f} ms of CPU (all "
        f"processes). What metrics add is measured where little else is done: clients with {FEW_SAMPLES} samples, "
        f"{asked.pairs} pairs of runs with and without, {asked.rounds} rounds each in turns, {seconds:.2f} s of pause "
        f"after each. They add {1000 * more:+.2f} ms ± {1000 * half:.2f} ms (95 %, over the pairs) to a round: "
        f"**{100 * more / whole:+.2f} % ± {100 * half / whole:.2f} %** of a whole one.",
        table(["metrics", "CPU ms of such a round: median of the pairs"], rows),
        machine(),
    ]
    publish("metrics", "\n\n".join(text), asked.out)


if __name__ == "__main__":
    main()
