"""How raysim's costs grow: with registered clients, model size and actors; by phase; and what exact sums cost.

    python -m benchmarks.scaling --out docs/benchmarks.md
    python -m benchmarks.scaling --only clients --clients 100 100000

Every line except those of exact sums is a separate run on its own Ray; the rounds after the first are timed.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.compare import pair
from benchmarks.report import machine, megabytes, publish, spread, table
from benchmarks.synthesis import raysim_settings
from benchmarks.turns import Side, here
from benchmarks.workloads import PROCESSES, Workload

CLIENTS = [100, 1_000, 10_000, 100_000]
MODELS = ["small-cnn", "mlp", "hfmds-cnn", "resnet18"]  # 0.02 to 11 M parameters at 3×32×32
ACTORS = [1, 2, 4]
VECTORS = [50_000, 878_538, 11_173_962]  # parameters: mlp at 28×28, hfmds-cnn and resnet18 at 3×32×32


def run(workload: Workload, settings: dict, asked: argparse.Namespace) -> tuple[Side, list[dict]]:
    """A run's rounds, the first as warm-up and left out; the side is over, and knows its memory and set-up."""
    extra = json.dumps(settings | dict(asked.set))
    with Side("raysim", here("ours", workload.to_json(), "--settings", extra)) as side:
        side.warm_up()
        return side, [side.round() for _ in range(asked.rounds)]


def cells(side: Side, answers: list[dict]) -> list[str]:
    seconds, cpu = ([answer[key] for answer in answers] for key in ("seconds", "cpu"))
    return [spread(seconds), f"{statistics.median(cpu):.2f}", f"{side.setup:.1f}", megabytes(side.peak)]


COSTS = ["s per round", "CPU s per round", "set-up, s", "peak PSS, MB"]


def with_clients(asked: argparse.Namespace) -> str:
    rows = []
    for clients in asked.clients:
        workload = Workload("clients", "small-cnn", (1, 28, 28), clients, asked.samples, min(100, clients), 0)
        rows.append([f"{clients:,}", *cells(*run(workload, {}, asked))])
    title = f"Registered clients (small-cnn, {asked.samples} samples each, up to 100 active; all pixels in the store):"
    return f"{title}\n\n{table(['clients', *COSTS], rows)}"


def with_models(asked: argparse.Namespace) -> str:
    from raysim.models import build

    rows = []
    for model in asked.models:
        workload = Workload("models", model, (3, 32, 32), 10, asked.samples, 4, 0)
        size = sum(parameter.numel() for parameter in build(model, workload.shape, 10, 0).parameters())
        rows.append([model, f"{size / 1e6:.2f} M", *cells(*run(workload, {}, asked))])
    title = f"Model size (3×32×32, 4 active clients of {asked.samples} samples):"
    return f"{title}\n\n{table(['model', 'parameters', *COSTS], rows)}"


def with_actors(asked: argparse.Namespace) -> str:
    rows = []
    for actors in asked.actors:
        workload = Workload("actors", "small-cnn", (1, 28, 28), 100, asked.samples, 100, 0)
        rows.append([actors, *cells(*run(workload, {"actors": actors}, asked))])
    title = f"Actors (small-cnn, 100 active clients of {asked.samples} samples; more than cores gain nothing):"
    return f"{title}\n\n{table(['actors', *COSTS], rows)}"


def by_phase(asked: argparse.Namespace) -> str:
    """Evaluating every round, as a run does by default; with synthesis in every second."""
    from benchmarks.hfmds_fedpa import SETTINGS

    own = {"every": 2, "steps": asked.steps, "per_client": asked.samples}
    settings = raysim_settings(SETTINGS | own) | {"eval_every": 1}
    workload = Workload("phases", "hfmds-cnn", (3, 32, 32), 10, asked.samples, 5, 0)
    _, answers = run(workload, settings, asked)
    found = {name: [answer["phases"][name] for answer in answers] for name in answers[0]["phases"]}
    # The first of these rounds is the second of the run, which synthesises; the next only asks whether to.
    found = {name: values[::2] if name.startswith("synthesis") else values for name, values in found.items()}
    title = (
        f"Phases of a round of hfmds+fedpa (hfmds-cnn, 5 of 10 clients with {asked.samples} samples train, all "
        f"synthesise {asked.samples} images in {asked.steps} steps; 100 test images; {PROCESSES} actors):"
    )
    rows = [[name, spread(values)] for name, values in found.items()]
    return f"{title}\n\n{table(['phase', 's'], rows)}"


def exact_sums(asked: argparse.Namespace) -> str:
    """Adding one client's weights to an actor's sum, on one thread: in whole numbers, and in floating point."""
    import torch

    from raysim.engine.fixed_point import ExactSums, mean_term

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = []
    for size in asked.vectors:
        vector = torch.randn(size)
        exact, single = ExactSums(), vector.clone()
        double = torch.zeros(size, dtype=torch.float64)
        ways: dict[str, Callable] = {
            "exact": lambda total=exact, v=vector: total.add({"model": mean_term(v, 0.01)}),
            "float64": lambda total=double, v=vector: total.add_(v, alpha=0.01),
            "float32": lambda total=single, v=vector: total.add_(v, alpha=0.01),
        }
        seconds = {name: [] for name in ways}
        for i in range(asked.repeats + 1):
            for name, add in ways.items():
                started = time.thread_time()
                add()
                if i:
                    seconds[name].append(time.thread_time() - started)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        rates = [f"{1000 * s:.2f} ms, {vector.nbytes / s / 1e9:.2f} GB/s" for s in medians.values()]
        rows.append([f"{size:,}", *rates, f"{medians['exact'] / medians['float32']:.1f}"])
    torch.set_num_threads(threads)
    title = (
        "Exact aggregation: one client's model into an actor's sum, one thread; GB of float32 weights per second of "
        "processor time:"
    )
    return f"{title}\n\n{table(['parameters', *ways, 'exact ÷ float32'], rows)}"


PARTS = {
    "clients": with_clients, "models": with_models, "actors": with_actors, "phases": by_phase, "sums": exact_sums,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each run")
    parser.add_argument("--samples", type=int, default=20, help="per client")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--actors", type=int, nargs="+", default=ACTORS)
    parser.add_argument("--steps", type=int, default=50, help="of the synthesis")
    parser.add_argument("--vectors", type=int, nargs="+", default=VECTORS, help="parameters of the models summed")
    parser.add_argument("--repeats", type=int, default=21, help="of the sums")
    parser.add_argument("--set", type=pair, action="append", default=[], help="a setting of raysim, as key=value")
    parser.add_argument("--out", type=Path, help="file to put the sections into")
    asked = parser.parse_args(arguments)
    for name in asked.only:  # written one by one, so that an interrupted benchmark leaves what it has
        text = f"## Scaling: {name}\n\n`python -m benchmarks.scaling`. {PARTS[name](asked)}\n\n{machine()}"
        publish(f"scaling {name}", text, asked.out)


if __name__ == "__main__":
    main()
