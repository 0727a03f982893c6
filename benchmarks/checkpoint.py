"""What a checkpoint costs: to write, to load and verify, and as a share of a round at the paper's size.

    python -m benchmarks.checkpoint --out docs/benchmarks.md
    python -m benchmarks.checkpoint --rounds 0 --folder /mnt/elsewhere           only writing and loading, on that disk

It writes checkpoints of HFMDS+FedPA as a run makes them, and of a large model. Then raysim with a checkpoint after
every round and raysim without take turns round by round; a round's checkpoint is written while the next one runs.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.compare import pair
from benchmarks.hfmds_fedpa import SETTINGS
from benchmarks.ours import settings as settings_of
from benchmarks.report import machine, publish, spread, table
from benchmarks.synthesis import raysim_settings
from benchmarks.turns import Side, here
from benchmarks.workloads import CLASSES, Workload

EVERY = 2  # rounds between syntheses, the paper has 20: here the images are written ten times as often
WARM_UP = 2  # rounds: until something was synthesised


class Kept:
    """Takes the place of checkpoints: keeps what a run gives it to write."""

    def save(self, t: int, server: dict, states: dict, shared: dict, *_) -> None:
        self.server, self.states, self.shared = server, states, shared


def kept_of(workload: Workload, per_client: int) -> Kept:
    """A checkpoint of a round in which all clients train and share images; these are not optimised, but as large."""
    from raysim.config import resolve
    from raysim.engine.in_process import InProcess
    from raysim.engine.simulation import Simulation
    from raysim.single_run import prepare, store
    from raysim.storage.checkpoint_writer import CheckpointWriter

    short = {
        "rounds": 1, "active": workload.clients, "local_steps": 1, "dataset": "shapes", "test_size": CLASSES,
        "train_size": workload.clients * per_client,
    }  # fmt: skip
    synthesis = raysim_settings(SETTINGS | {"every": 1, "steps": 0, "per_client": per_client})
    config = resolve([("workload", settings_of(workload)), ("benchmark", synthesis | short)])
    runner, kept = InProcess(), Kept()
    try:
        data = store(config, *prepare(config), runner.put)
        started = runner.start(config, data)
        Simulation(config, data, runner, started.model_bytes, CheckpointWriter(kept, runner, runner.on_event)).run()
    finally:
        runner.stop()
    return kept


def model_of(name: str) -> Kept:
    """A checkpoint of FedAvg, which has nothing but the model."""
    import torch

    from raysim.models import build
    from raysim.models.flat import FlatModel

    model = FlatModel(build(name, (3, 32, 32), CLASSES, 0), torch.device("cpu"))
    kept = Kept()
    kept.save(1, {"weights": [model.weights.numpy()], "state": {}}, {}, {})
    return kept


# -- by itself ---------------------------------------------------------------------------------------------------------


class Costs:
    """One way to write or read: its bytes, and per repeat the seconds and the processor seconds."""

    def __init__(self):
        self.size, self.seconds, self.cpu = 0, [], []

    def measure(self, work, wanted: bool) -> None:
        cpu, started = time.process_time(), time.perf_counter()
        work()
        if wanted:
            self.seconds.append(time.perf_counter() - started)
            self.cpu.append(time.process_time() - cpu)

    def cells(self) -> list[str]:
        rate = self.size / 1e6 / statistics.median(self.seconds)
        milliseconds = ([1000 * s for s in values] for values in (self.seconds, self.cpu))
        return [f"{self.size / 1e6:.2f}", *(spread(values, 1) for values in milliseconds), f"{rate:,.0f}"]


HEAD = ["", "MB", "ms", "CPU ms", "MB/s"]


def costs(kept: Kept, active: int, folder: Path, repeats: int) -> dict[str, Costs]:
    """A first checkpoint, a later one in which `active` clients' states and the server changed, and loading."""
    from raysim.storage.checkpoints import Checkpoints

    found = {"first": Costs(), "later": Costs(), "load and verify": Costs()}
    changed = dict(list(kept.states.items())[:active])
    for i in range(repeats + 1):  # the first warms up
        with tempfile.TemporaryDirectory(dir=folder) as made:
            path = Path(made) / "checkpoints"
            checkpoints = Checkpoints(path, {})
            found["first"].measure(lambda c=checkpoints: c.save(1, kept.server, kept.states, kept.shared), i > 0)
            whole = sizes(path)
            found["load and verify"].measure(Checkpoints(path, {}).load, i > 0)
            found["later"].measure(lambda c=checkpoints: c.save(2, kept.server, changed, kept.shared), i > 0)
            found["first"].size = found["load and verify"].size = sum(whole.values())
            found["later"].size = sum(size for name, size in sizes(path).items() if name not in whole)
    return found


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


# -- in a run ----------------------------------------------------------------------------------------------------------


def rounds(workload: Workload, per_client: int, asked: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Side -> seconds and processor seconds of its rounds."""
    data = ["--data", str(Path(asked.data).resolve())] if asked.data else []
    synthesis = raysim_settings(SETTINGS | {"every": EVERY, "steps": 1, "per_client": per_client})

    def side(name: str, every: int) -> Side:
        settings = synthesis | {"checkpoint_every": every} | dict(asked.set)
        return Side(name, here("ours", workload.to_json(), *data, "--settings", json.dumps(settings)))

    with side("without", 0) as without, side("a checkpoint after every round", 1) as kept:
        measured = {s: {"seconds": [], "cpu": []} for s in (without, kept)}
        for s in measured:
            for _ in range(WARM_UP):
                s.warm_up()
        for i in range(asked.rounds):
            for s in (without, kept) if i % 2 else (kept, without):
                answer = s.round()
                for key, values in measured[s].items():
                    values.append(answer[key])
        return {s.name: values for s, values in measured.items()}


def share_of(measured: dict[str, dict[str, list[float]]], later: Costs) -> list[str]:
    """A table of both sides, and a line on what it shows."""
    without, kept = measured.values()
    rows = [[name, spread(values["seconds"]), spread(values["cpu"], 2)] for name, values in measured.items()]
    # The clock of processor time has steps of 10 ms: a round may be too short for it.
    more = [
        spread([100 * (a / b - 1) for a, b in zip(kept[key], without[key], strict=True) if b] or [0.0], 1)
        for key in ("seconds", "cpu")
    ]
    rows.append(["more, %, pair by pair", *more])
    share, of_cpu = (
        100 * statistics.median(mine) / max(statistics.median(whole), 1e-9)
        for mine, whole in ((later.seconds, without["seconds"]), (later.cpu, without["cpu"]))
    )
    return [
        table(["", "s per round", "CPU s per round"], rows),
        f"Writing a later checkpoint by itself, as above, is {share:.2f} % of such a round, and {of_cpu:.2f} % of its "
        "processor time.",
    ]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for size, default in {"clients": 20, "samples": 2_500, "active": 10, "per_client": 100}.items():
        parser.add_argument(f"--{size.replace('_', '-')}", type=int, default=default, help=f"the paper has {default}")
    parser.add_argument("--large", default="resnet18", help="the large model")
    parser.add_argument("--repeats", type=int, default=20, help="of writing and loading")
    parser.add_argument("--rounds", type=int, default=6, help="timed, of each side; 0: none")
    parser.add_argument("--folder", type=Path, help="where checkpoints are written; where temporary files go otherwise")
    parser.add_argument("--data", help="folder with CIFAR-10; the built-in shapes otherwise")
    parser.add_argument("--set", type=pair, action="append", default=[], help="a setting of raysim, as key=value")
    parser.add_argument("--out", type=Path, help="file to put the section into")
    asked = parser.parse_args(arguments)
    workload = Workload(
        "checkpoint", "hfmds-cnn", (3, 32, 32), asked.clients, asked.samples, asked.active, asked.rounds
    )  # fmt: skip
    whole = costs(kept_of(workload, asked.per_client), asked.active, asked.folder, asked.repeats)
    large = costs(model_of(asked.large), 0, asked.folder, asked.repeats)
    rows = [[f"hfmds+fedpa, {name}", *found.cells()] for name, found in whole.items()]
    rows += [[f"{asked.large}, {name}", *found.cells()] for name, found in large.items() if name != "later"]
    text = [
        "## What a checkpoint costs",
        f"`python -m benchmarks.checkpoint`: hfmds+fedpa with {workload.describe()}, {asked.per_client} synthetic "
        f"images per client; FedAvg with {asked.large}. Everything is synced to the disk. A later checkpoint does not "
        "write the images and the inactive clients' states again. Medians, lowest to highest in brackets.",
        table(HEAD, rows),
    ]
    if asked.rounds:
        text += [
            f"Rounds in turns, with synthetic images that are new in every {EVERY}nd round (1 step; the paper has new "
            "ones in every 20th):",
            *share_of(rounds(workload, asked.per_client, asked), whole["later"]),
        ]
    publish("checkpoint", "\n\n".join([*text, machine()]), asked.out)


if __name__ == "__main__":
    main()
