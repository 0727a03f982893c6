"""Small runs for tests: a dataset that is learnt in a few rounds, and one call that runs a configuration on it."""

import numpy as np

from raysim.config import resolve
from raysim.data import Dataset, Split
from raysim.data.federated import FederatedData
from raysim.data.synthetic_tables import table_digest
from raysim.engine.in_process import InProcess
from raysim.engine.ray_runner import cluster
from raysim.engine.ray_runner.plan import make_plan
from raysim.engine.ray_runner.runner import RayRunner
from raysim.engine.simulation import Result, Simulation
from raysim.single_run import store

SMALL = {
    "model": "mlp", "clients": 10, "active": 6, "rounds": 3, "lr": 0.05, "batch_size": 8, "partition": "dirichlet",
    "beta": 0.5, "eval_batch": 64, "seed": 3,
}  # fmt: skip


SYNTHESIS = {
    "method": "hfmds+fedpa", "hfmds.layer": "features", "hfmds.every": 2, "hfmds.first": 2, "hfmds.steps": 3,
    "hfmds.per_client": 10, "hfmds.group": 4, "fedpa.gen_steps": 5,
}  # fmt: skip


def blobs(train: int = 400, test: int = 200, classes: int = 5, shape=(1, 8, 8), seed: int = 0) -> Dataset:
    """A class is a random pattern; an image is its pattern and noise."""
    draw = np.random.default_rng(seed)
    patterns = draw.integers(40, 216, (classes, *shape))

    def split(n: int) -> Split:
        y = draw.integers(0, classes, n)
        noisy = patterns[y] + draw.normal(0, 90, (n, *shape))
        return Split(np.clip(noisy, 0, 255).astype(np.uint8), y.astype(np.int64))

    return Dataset("blobs", tuple(f"c{i}" for i in range(classes)), split(train), split(test))


def configure(**settings):
    return resolve([("test", SMALL | settings)])


def federated(config, dataset: Dataset, put=lambda value: value) -> FederatedData:
    """The dataset dealt and stored as this configuration asks."""
    dealt = config.partitioner().deal(dataset.train.y, dataset.classes, config.clients, config.seed)
    return store(config, dataset, dealt, put)


def simulate(
    dataset: Dataset | None = None, runner=None, saver=None, on_round=lambda line: None,
    on_event=lambda kind, **details: None, **settings,
) -> Result:  # fmt: skip
    """Run in this process, or on another runner; `saver(runner)` makes what keeps its checkpoints."""
    config = configure(**settings)
    runner = runner or InProcess(on_event=on_event)
    try:
        data = federated(config, dataset or blobs(), runner.put)
        runner.reserve()
        started = runner.start(config, data)
        return Simulation(config, data, runner, started.model_bytes, saver and saver(runner)).run(on_round)
    finally:
        runner.stop()


def simulate_on_ray(
    dataset: Dataset | None = None, saver=None, on_round=lambda line: None, on_event=lambda kind, **details: None,
    **settings,
) -> Result:  # fmt: skip
    """Run on the Ray this process is connected to."""
    config = configure(**settings)
    plan = make_plan(config, cluster.nodes(), client_bytes=2**20)
    return simulate(dataset, RayRunner(plan, config, on_event=on_event), saver, on_round, **settings)


def told_to(events: list):
    """An `on_event` that adds (kind, details) to the list."""
    return lambda kind, **details: events.append((kind, details))


UNEQUAL = ("seconds", "phases", "failures", "retries", "timeline", "gpu_bytes")  # between two runs of one configuration


def comparable(result: Result) -> tuple:
    """What two runs of one configuration must agree on."""
    lines = [{k: v for k, v in line.items() if k not in UNEQUAL} for line in result.history]
    measured = [figure for figure in result.privacy if not figure.name.endswith(".epsilon")]  # that are of any part
    tables = {part: table_digest(table) for part, table in result.shared.items()}
    return result.model_sha256, result.server_state_sha256, lines, measured, tables
