"""raysim as a side of a benchmark: a whole run, as with `raysim run`, that waits for its turn between the rounds.

    python -m benchmarks.compare        runs it; started alone it only waits for its turn (benchmarks/turns.py)

Settings are the defaults, except those of the workload. Only the images and the waiting belong to the benchmark: the
run plans, writes its directory and records every round as usual.
"""

import argparse
import json
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from benchmarks.turns import Over, Turns
from benchmarks.workloads import BATCH, CLASSES, PROCESSES, TRAINING, Workload, pixels, save
from raysim.config import resolve
from raysim.engine.ray_runner.environment import secure_local_ray

ROUNDS = 1_000_000  # never reached: the last round would evaluate and count operations


def settings(workload: Workload) -> dict[str, object]:
    """What makes raysim do this workload."""
    return TRAINING | {
        "model": workload.model, "clients": workload.clients, "active": workload.active, "partition": "iid",
        "batch_size": BATCH, "local_epochs": 1, "eval_every": 0, "rounds": ROUNDS, "actors": PROCESSES,
    }  # fmt: skip


def watch(run, turns: Turns, workload: Workload, data: str | None, folder: Path) -> type:
    """Give the run its images, time the phases of its rounds; the reporter that takes turns.

    Random pixels are in a file in the folder, and mapped, as somebody with many images would have them.
    """
    from raysim.data import Dataset, Split
    from raysim.data.partitions import Partition
    from raysim.observe import progress

    def prepare(config):
        if workload.shape[0] == 1:
            save(workload, folder)
        x, y = pixels(workload, str(folder) if workload.shape[0] == 1 else data)
        named = Dataset("benchmark", tuple(map(str, range(CLASSES))), Split(x, y), Split(x[:100], y[:100]))
        if workload.beta is not None:
            return named, Partition(np.arange(len(y)), workload.offsets)
        return named, config.partitioner().deal(y, CLASSES, config.clients, config.seed)

    class Watched(run.Simulation):
        """Knows how long each phase of a round took."""

        def round(self, t):
            self.phases, started = {}, time.perf_counter()
            metrics, typical = super().round(t)
            # Wait for the average: otherwise it would be computed in the other side's turn.
            self.runner.get(self.weights)
            rest = time.perf_counter() - started - sum(self.phases.values())
            metrics.phases = self.phases | {"server and driver": rest}
            return metrics, typical

        def exchanges(self, part, *arguments):
            with self.phase(f"synthesis ({part.name})"):
                super().exchanges(part, *arguments)

        def carry_out(self, work, *arguments):
            with self.phase("local training", work.name == "train"):
                return super().carry_out(work, *arguments)

        def evaluate(self, t):
            with self.phase("evaluation"):
                return super().evaluate(t)

        @contextmanager
        def phase(self, name, wanted=True):
            started = time.perf_counter()
            yield
            if wanted:
                self.phases[name] = self.phases.get(name, 0.0) + time.perf_counter() - started

    class Reporter(progress.Reporter):
        """Prints nothing; waits instead."""

        def say(self, text):
            pass

        def on_start(self, settings, out):
            turns.ready()

        def on_round(self, metrics):
            turns.done(phases=metrics.phases, terms={"ce": metrics.train_loss} | metrics.terms)

    run.prepare, run.Simulation = prepare, Watched
    return Reporter


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", type=Workload.from_json)
    parser.add_argument("--data", help="folder with CIFAR-10")
    parser.add_argument("--settings", type=json.loads, default={}, help="further settings, as JSON")
    asked = parser.parse_args(arguments)
    turns = Turns()
    secure_local_ray()  # before Ray is imported
    from raysim import single_run as run

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        layers = [("workload", settings(asked.workload)), ("--set", asked.settings)]
        config = resolve([*layers, ("benchmark", {"out": str(Path(folder) / "run")})])
        reporter = watch(run, turns, asked.workload, asked.data, Path(folder))()
        with suppress(Over):
            run.run(config, reporter)


if __name__ == "__main__":
    main()
