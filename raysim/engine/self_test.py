"""A device examined by itself: what torch says of it, and whether a local training on it is right and repeatable."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from raysim import models
from raysim.config import resolve
from raysim.engine.digest import digest
from raysim.models.flat import FlatModel
from raysim.rng import stream
from raysim.tensors import to_device, to_host
from raysim.training.client import Client, train
from raysim.training.device import fingerprint, prepare_torch

SHAPE, CLASSES, SAMPLES = (3, 32, 32), 10, 100
NEAR = 1e-3  # of the CPU's update: a device may round otherwise, and not more than that
SETTINGS = {"model": "hfmds-cnn", "batch_size": 10, "lr": 0.01, "clients": 1, "seed": 7}


@dataclass(frozen=True)
class Examined:
    """What was found of one device of the cluster."""

    node: str
    gpu: str | None  # as Ray names it; None: the CPU of a node without GPUs
    fingerprint: dict[str, object]
    facts: dict[str, str]  # for people
    sha256: str  # of the trained weights
    repeats: bool  # whether a second training gave the same
    apart: float  # of the update from the CPU's, relative to its length
    seconds: float

    @property
    def name(self) -> str:
        """The device in words."""
        return f"GPU {self.gpu} of node {self.node[:8]}" if self.gpu is not None else f"node {self.node[:8]}"


def examine(node: str, gpu: str | None) -> Examined:
    """Examine the device that this process has."""
    device = prepare_torch(resolve([("self-test", SETTINGS)]), use_gpu=gpu is not None)
    facts = facts_of(device)
    began = time.monotonic()
    first, again = trained(device), trained(device)
    seconds = time.monotonic() - began
    expected = trained(torch.device("cpu")) if device.type != "cpu" else first
    start = _model(torch.device("cpu")).weights.numpy()
    apart = float(np.linalg.norm(first - expected) / np.linalg.norm(expected - start))
    return Examined(
        node,
        gpu,
        fingerprint(device),
        facts,
        digest([{"weights": first}]),
        bool((first == again).all()),
        apart,
        seconds,
    )


def trained(device: torch.device) -> np.ndarray:
    """The weights after one client's local training on images made here; the same on every machine but for rounding."""
    config = resolve([("self-test", SETTINGS)])
    draw = stream(7, "self-test")
    x = to_device(draw.standard_normal((SAMPLES, *SHAPE), dtype=np.float32), device)
    y = to_device(draw.integers(CLASSES, size=SAMPLES), device)
    model = _model(device)
    x = x.contiguous(memory_format=torch.channels_last)
    train(Client(0, 1, config, CLASSES, model, model.weights.clone(), x, y, {}, {}))
    return to_host(model.weights).copy()


def _model(device: torch.device) -> FlatModel:
    return FlatModel(models.build("hfmds-cnn", SHAPE, CLASSES, 7).eval(), device)


def facts_of(device: torch.device) -> dict[str, str]:
    """What is worth knowing of a device, in words."""
    facts = {"torch": f"{torch.__version__} for {torch.version.cuda or torch.version.hip or 'CPUs'}"}
    if device.type != "cuda":
        return facts
    free, total = torch.cuda.mem_get_info(device)
    facts |= {
        "device": torch.cuda.get_device_name(device),
        "memory": f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free",
        "driver": _driver(),
        "MPS": "on" if os.path.exists(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) else "off",
        "deterministic": "yes" if torch.are_deterministic_algorithms_enabled() else "no",
        "CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG", "not set"),
    }
    return facts


def _driver() -> str:
    if (tool := shutil.which("nvidia-smi")) is None:
        return "unknown (no nvidia-smi)"
    asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.split("\n")[0].strip() or "unknown"


def faults(found: list[Examined]) -> list[str]:
    """What is wrong with these devices, a line each."""
    lines = []
    for one in found:
        if not one.repeats:
            lines.append(f"{one.name}: the same training gave different bits; equal hashes cannot be promised there")
        if not one.apart <= NEAR:
            lines.append(f"{one.name}: its training is {one.apart:.1e} of the update off the CPU's; do not use it")
    kinds: dict[tuple[tuple[str, Any], ...], list[Examined]] = {}
    for one in found:
        kinds.setdefault(tuple(one.fingerprint.items()), []).append(one)
    for alike in kinds.values():
        if len({one.sha256 for one in alike}) > 1:
            names = ", ".join(f"{one.name} {one.sha256[:8]}" for one in alike)
            lines.append(f"devices of one kind disagree in the last bits: {names}")
    return lines
