"""FLUTE's published CPU task: logistic regression on MNIST, 10 of 1,000 clients in each of 100 rounds.

    python -m benchmarks.flute --data path/to/data --out docs/benchmarks.md

One whole run from the command's start to its end: Ray, data, training with batches of 10 at rate 0.03, evaluation and
report. FLUTE's authors published 3 min 20 s for it and 30 min for Flower on their machine. Ours is another one: the
figures stand beside each other, and no ratio is taken.
"""

import argparse
import tempfile
import time
from pathlib import Path

from torch import nn

import raysim
from benchmarks.report import machine, publish, table

TASK = {
    "dataset": "mnist", "clients": 1_000, "active": 10, "rounds": 100, "batch_size": 10, "lr": 0.03, "momentum": 0.0,
    "partition": "iid",
}  # fmt: skip


class LogisticRegression(nn.Module):
    """One linear layer on the pixels."""

    def __init__(self, shape: tuple[int, int, int], classes: int):
        super().__init__()
        channels, height, width = shape
        self.head = nn.Linear(channels * height * width, classes)

    def features(self, x):
        return x.flatten(1)

    def forward(self, x):
        return self.head(self.features(x))


def measure(**settings) -> tuple[float, float, float]:
    """Seconds of the whole run and of its median round, and the accuracy."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = raysim.run(progress=False, model=LogisticRegression, out=f"{folder}/run", **TASK | settings)
        seconds = sorted(line["seconds"] for line in run.history)
        return time.perf_counter() - started, seconds[len(seconds) // 2], run.accuracy


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder with MNIST")
    parser.add_argument("--rounds", type=int, default=TASK["rounds"])
    parser.add_argument("--out", type=Path, help="file to put the section into")
    asked = parser.parse_args(arguments)
    whole, median, accuracy = measure(data=asked.data, rounds=asked.rounds)
    rows = [
        [
            f"raysim, {asked.rounds} rounds, here",
            f"{whole:.1f} s",
            f"{1000 * median:.0f} ms",
            f"{100 * accuracy:.2f} %",
        ],
        ["FLUTE, as published", "3 min 20 s", "", ""],
        ["Flower, as published by FLUTE's authors", "30 min", "", ""],
    ]
    about = (
        "`python -m benchmarks.flute`: logistic regression on MNIST, 10 of 1,000 clients a round, batches of 10; all "
        "of the run, from its first line to its report. The others' figures are of another machine."
    )
    text = ["## FLUTE's task", about, table(["", "whole run", "median round", "accuracy"], rows), machine()]
    publish("flute", "\n\n".join(text), asked.out)


if __name__ == "__main__":
    main()
