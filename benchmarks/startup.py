"""How long it takes until the first round begins, compared with what Ray and torch take by themselves.

    python -m benchmarks.startup --out docs/benchmarks.md

The floor is a program that starts a local Ray and imports torch, one after the other, and does nothing with either.
raysim also loads its data, writes its run directory and starts a server actor and 2 client actors that import torch.
Both are started in turns, cold: new processes, new Ray.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.report import machine, publish, spread, table
from benchmarks.turns import MARK, Side, here
from benchmarks.workloads import PROCESSES, Workload

TINY = Workload("startup", "small-cnn", (1, 28, 28), 10, 20, 2, 0)
FLOOR = f"""
import ray
ray.init(address="local", num_cpus={PROCESSES}, include_dashboard=False, logging_level="ERROR")
import torch
print("{MARK}{{}}", flush=True)
input()
"""


def measure(repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of raysim's starts and of the floor's; the first pair, which fills the disk's cache, is left out."""
    commands = {"raysim": here("ours", TINY.to_json()), "floor": [sys.executable, "-c", FLOOR]}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for i in range(repeats + 1):
        for name, command in sorted(commands.items(), reverse=bool(i % 2)):
            with Side(name, command, sampled=False) as side:
                if i:
                    seconds[name].append(side.setup)
    return seconds["raysim"], seconds["floor"]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="file to put the section into")
    asked = parser.parse_args(arguments)
    ours, floor = measure(asked.repeats)
    ratios = [a / b for a, b in zip(ours, floor, strict=True)]
    rows = [["raysim, to its first round", spread(ours, 1), spread(ratios, 2)]]
    rows.append(["Ray's start and torch's import", spread(floor, 1), "1"])
    about = "`python -m benchmarks.startup`: cold starts in turns; medians, lowest to highest in brackets."
    text = ["## Start-up", about, table(["", "s", "ratio"], rows), machine()]
    publish("startup", "\n\n".join(text), asked.out)


if __name__ == "__main__":
    main()
