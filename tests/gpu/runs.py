"""Whole runs on the pretended device: are they what they are on the CPU, and what does one step of them cost?"""

from __future__ import annotations

import math
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from raysim import methods
from raysim.engine.in_process import InProcess
from raysim.engine.round_metrics import RoundMetrics
from raysim.engine.simulation import Result, Simulation
from raysim.methods.base import can_fuse
from raysim.storage.checkpoint_writer import CheckpointWriter
from raysim.storage.checkpoints import Checkpoints
from raysim.training.optimizers import Optimizer
from tests.gpu.device import LOG, Event, device, watched
from tests.methods.tiny import settings_of
from tests.simulate import blobs, comparable, configure, federated, simulate

# small-cnn has the layers of hfmds-cnn, so a step launches as much. Clients have unequal numbers of samples.
MEASURED = {
    "clients": 3, "active": 3, "rounds": 2, "batch_size": 10, "local_steps": 4, "partition": "dirichlet", "beta": 5.0,
    "eval_batch": 40, "privacy": 20, "weight_decay": 5e-4,
}  # fmt: skip
SHAPE = (3, 32, 32)
FUSED = 10
EVERY_STEP = {"hfmds": {"hfmds.every": 1}, "fmds": {"hfmds.every": 1}}  # so that the second round trains on images
UNLABELLED = {"labelled": 30, "unlabelled_batch": 64}


@dataclass
class Found:
    """What a run on the device showed; it travels as JSON."""

    error: str = ""  # a traceback
    differs: list[str] = field(default_factory=list)  # what is not as on the CPU
    steps: dict[str, dict[str, int]] = field(default_factory=dict)  # kind of step -> launches, transfers, waits
    places: list[str] = field(default_factory=list)  # of the transfers and waits inside steps
    operations: list[str] = field(default_factory=list)  # launched anywhere in the run


def measured_runs() -> dict[str, dict[str, Any]]:
    """Name -> settings: every method and the main job's pair, alone and with --fuse where that is written."""
    wanted: dict[str, dict[str, Any]] = {}
    for method in [*methods.names(), "hfmds+fedpa"]:
        parts = method.split("+")
        more = {key: value for part in parts for key, value in EVERY_STEP.get(part, {}).items()}
        wanted[method] = settings_of(*parts, **(MEASURED | more))
        if "labelled" in wanted[method]:
            wanted[method] |= UNLABELLED
    wanted["fedbn on fedpa-cnn"] = wanted["fedbn"] | {"model": "fedpa-cnn"}  # which has batch-norm
    wanted["fixmatch"] |= {"local_steps": 20}  # more than it augments at once
    wanted["feddpms"] |= {"rounds": 4, "local_steps": 2}
    wanted["feddpgan"] |= {"partition": "iid"}  # noise is calibrated for every size of a client, in seconds
    found = {}
    for method, settings in wanted.items():
        found[method] = settings
        if all(map(can_fuse, configure(**settings).parts)):
            found[f"{method} --fuse {FUSED}"] = settings | {"fuse": FUSED, "clients": FUSED, "active": FUSED}
    return found


def dataset(settings: dict[str, Any]):
    """Images of the measured shape: about five batches for every client."""
    return blobs(train=45 * settings["clients"], test=60, shape=SHAPE)


@contextmanager
def on_device() -> Iterator[None]:
    """A context in which actors get the pretended device, and steps of optimisers are marked in the log."""
    step = Optimizer.step
    optimizers: list[Optimizer] = []  # kept, so that no two have the same identity

    def marked(self: Optimizer) -> None:
        step(self)
        caller = sys._getframe(1).f_code
        first = not any(one is self for one in optimizers)
        if first:
            optimizers.append(self)
        LOG.add("mark", "first" if first else f"{Path(caller.co_filename).stem}.{caller.co_name}")

    with watched(), _using(device()), patch.object(Optimizer, "step", marked):
        yield


@contextmanager
def on_cpu() -> Iterator[None]:
    """A context in which actors get the CPU, and fused steps have the form that they have on accelerators."""
    with _using(torch.device("cpu")), patch("raysim.training.fused.is_accelerator", lambda device: True):
        yield


@contextmanager
def _using(device: torch.device) -> Iterator[None]:
    def prepare(config: Any, use_gpu: bool = True) -> torch.device:
        torch.set_num_threads(config.threads)
        return device

    with (
        patch("raysim.training.device.prepare_torch", prepare),
        patch("raysim.engine.hosted_model.prepare_torch", prepare),
    ):
        yield


def examined(settings: dict[str, Any], places: bool = False) -> Found:
    """Run these settings on the CPU and on the device; with `places` it also says where launches of a step are."""
    found = Found()
    LOG.places_of_launches = places
    try:
        with on_cpu():
            expected = comparable(simulate(dataset(settings), **settings))
        with on_device():
            result = comparable(simulate(dataset(settings), **settings))
        found.differs = differences(expected, result)
        found.steps, found.places = steps(LOG.events)
        found.operations = sorted({event.operation for event in LOG.events if event.kind == "launch"})
    except Exception:  # noqa: BLE001 - it is reported
        found.error = traceback.format_exc()
    return found


def differences(expected: tuple, result: tuple) -> list[str]:
    """What is not equal in two runs, in words."""
    kinds = ("model", "server state", "metrics", "privacy figures", "shared datasets")
    return [
        f"{kind}: {ours} is not {theirs}" for kind, ours, theirs in zip(kinds, result, expected, strict=True)
        if ours != theirs
    ]  # fmt: skip


def steps(events: list[Event]) -> tuple[dict[str, dict[str, int]], list[str]]:
    """What a step of each kind costs, without an optimiser's first; and where its transfers and waits are.

    Of launches it is the mean over a pass, since some work is done for several steps at once, in the pass that launches
    most; of the others it is the most.
    """
    found: dict[str, dict[int, list[dict[str, int]]]] = {}  # kind -> pass -> its steps
    passes = 0
    places: dict[str, None] = {}
    since: list[Event] = []
    for event in events:
        if event.kind != "mark":
            since.append(event)
            continue
        if event.operation != "first":
            kinds = [one.kind for one in since]
            counts = {
                "launches": kinds.count("launch"),
                "transfers": kinds.count("upload") + kinds.count("download"),
                "waits": kinds.count("wait"),
            }
            found.setdefault(event.operation, {}).setdefault(passes, []).append(counts)
            places |= {
                f"{event.operation}: {one.kind} by {one.operation} at {one.place}": None
                for one in since if one.place
            }  # fmt: skip
        passes += event.operation == "first"
        since = []
    costs = {}
    for kind, by_pass in found.items():
        each = [counts for steps in by_pass.values() for counts in steps]
        costs[kind] = {key: max(counts[key] for counts in each) for key in each[0]}
        means = [sum(counts["launches"] for counts in steps) / len(steps) for steps in by_pass.values()]
        costs[kind]["launches"] = math.ceil(max(means))
    return costs, list(places)


def resumed(settings: dict[str, Any]) -> Found:
    """Run these settings on the device, stop after the first round, and go on there from the checkpoint."""
    found = Found()
    try:
        with on_cpu():
            expected = comparable(simulate(dataset(settings), **settings))
        with tempfile.TemporaryDirectory() as folder, on_device():
            begun = _continued(settings, Path(folder), [], stop_after=1)
            begun.history[-1].gflops.pop("training")  # counted in a run's last round, which this was
            result = comparable(_continued(settings, Path(folder), begun.history))
        found.differs = differences(expected, result)
    except Exception:  # noqa: BLE001 - it is reported
        found.error = traceback.format_exc()
    return found


def _continued(
    settings: dict[str, Any], folder: Path, history: list[RoundMetrics], stop_after: int | None = None
) -> Result:
    """The run from its last checkpoint on, if there is one."""
    config, runner = configure(**settings), InProcess()
    data = federated(config, dataset(settings), runner.put)
    started = runner.start(config, data)
    writer = CheckpointWriter(Checkpoints(folder, {}), runner, runner.on_event)
    try:
        simulation = Simulation(config, data, runner, started.model_bytes, writer)
        checkpoint = writer.load()
        if checkpoint is not None:
            checkpoint = replace(checkpoint, stopped=None)  # as if it had been interrupted, rather than ended
        return simulation.run(lambda line: line.round == stop_after, history, checkpoint)
    finally:
        writer.finish()
        runner.stop()
