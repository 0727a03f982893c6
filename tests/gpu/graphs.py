"""Runs with --cuda-graphs on the pretended device, whose graphs are stand-ins: are they what they are step by step?"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from raysim.methods.base import STEP_HOOKS, Part, can_replay
from raysim.methods.fedprox import FedProx
from tests.gpu.device import LOG, Graph
from tests.gpu.runs import dataset, differences, measured_runs, on_cpu, on_device
from tests.simulate import comparable, configure, simulate

# More steps than an epoch has whole batches, and a learning rate that changes once.
REPLAYED = {"local_steps": 7, "lr_decay": 0.5, "lr_decay_every": 2, "rounds": 3}
# Every class that says its steps can be replayed, and settings that change what is captured.
RUNS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "feddyn": {"method": "feddyn"},
    "fedhkd": {"method": "fedhkd"},
    "fedhkd_reference": {"method": "fedhkd_reference"},
    "fedpa_reference": {"method": "fedpa_reference", "fedpa_reference.gen_steps": 3},
    "fedprox, adam": {"method": "fedprox", "optimizer": "adam"},
    "fedprox, no momentum": {"method": "fedprox", "momentum": 0.0},
    "fedprox on fedpa-cnn": {"method": "fedprox", "model": "fedpa-cnn"},  # which has batch-norm
    "hfmds+fedpa": {
        "method": "hfmds+fedpa", "hfmds.layer": "features", "hfmds.steps": 2, "hfmds.every": 1, "fedpa.gen_steps": 3,
    },
    "naivemix": {"method": "naivemix"},
    "scaffold+mixup": {"method": "scaffold+mixup"},
}  # fmt: skip


@dataclass
class Replayed:
    """What a run with graphs showed; it travels as JSON."""

    error: str = ""  # a traceback
    differs: list[str] = field(default_factory=list)  # what is not as on the CPU, step by step
    captures: int = 0
    replays: int = 0
    eager: int = 0  # local steps that were not replayed
    launches: int = 0  # of a replayed step


def replayed_runs() -> dict[str, dict[str, Any]]:
    """Name -> settings."""
    return {name: measured_runs()["fedavg"] | REPLAYED | more for name, more in RUNS.items()}


def untried() -> list[str]:
    """Classes that say their steps can be replayed, and that no run tries."""
    return sorted(_classes(measured_runs()) - _classes(replayed_runs()))


def _classes(runs: dict[str, dict[str, Any]]) -> set[str]:
    """The classes with hooks of the local step, of the parts of these runs that can be replayed."""
    parts = [part for settings in runs.values() for part in configure(**settings).parts if can_replay(part)]
    classes = {cls for part in parts for cls in type(part).__mro__}
    return {cls.__name__ for cls in classes - {Part} if STEP_HOOKS & vars(cls).keys()}


def examined(settings: dict[str, Any]) -> Replayed:
    """Run these settings on the CPU as they are, and on the device with graphs."""
    found = Replayed()
    Graph.captures = Graph.replays = 0
    try:
        with on_cpu():
            expected = comparable(simulate(dataset(settings), **settings))
        with on_device(), patch("raysim.training.graphs.CudaGraph", Graph):
            result = comparable(simulate(dataset(settings), **settings, cuda_graphs=True))
        found.differs = differences(expected, result)
        found.captures, found.replays = Graph.captures, Graph.replays
        marks = [event.operation for event in LOG.events if event.kind == "mark"]
        found.eager = marks.count("client.train")
        found.launches = _launches_of_replays()
    except Exception:  # noqa: BLE001 - it is reported
        found.error = traceback.format_exc()
    return found


def _launches_of_replays() -> int:
    """The fewest launches from the end of one replay to the end of the next: those between two of the same client."""
    counts, since, before = [], 0, ""
    for event in LOG.events:
        since += event.kind == "launch"
        if event.kind == "mark":
            if before == event.operation == "replay":
                counts.append(since)
            since, before = 0, event.operation
    return min(counts)


def mistaken() -> Replayed:
    """A part that says it can be replayed and goes by the round, which a replay does not see."""

    def pull(part: FedProx, clients: Any, weights: Any, start: Any) -> Any:
        return None, clients[0].t * (weights - start)

    with patch.object(FedProx, "pull", pull):
        return examined(measured_runs()["fedprox"] | REPLAYED)


def everything(share: int = 0, of: int = 1) -> dict[str, Replayed]:
    """What all runs show, or every `of`-th of them."""
    runs = replayed_runs()
    found = {name: examined(runs[name]) for name in [*runs][share::of]}
    return found | ({} if share else {"mistaken": mistaken()})
