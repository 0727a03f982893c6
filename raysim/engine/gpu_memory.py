"""What a client actor takes of a GPU's memory, measured on one before actors are planned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from raysim import models
from raysim.engine.ray_runner.plan import Room
from raysim.models.flat import FlatModel
from raysim.training.client import Client, train
from raysim.training.device import CONTEXT_BYTES, peak_memory, prepare_torch

if TYPE_CHECKING:
    from raysim.config import RunConfig

SPARE = 1.25  # of what was measured: clients differ, and methods do more than their local steps


def measure(config: RunConfig, shape: tuple[int, int, int], classes: int) -> Room | None:
    """The room on this process's GPU and what an actor needs of it; None where there is no GPU by NVIDIA or AMD."""
    device = prepare_torch(config)
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    work(config, shape, classes, device)
    return Room(free, CONTEXT_BYTES + int(SPARE * peak_memory(device) * config.fuse_size))


def work(config: RunConfig, shape: tuple[int, int, int], classes: int, device: torch.device) -> None:
    """Train a client of this configuration for two steps, and evaluate a batch, on images that show nothing.

    Parts are left out, since they would need what a server sends; most train on as many images again.
    """
    size = config.batch_size * (2 if config.parts else 1) + (config.unlabelled_batch if config.labelled else 0)
    x = torch.zeros(size, *shape, device=device).contiguous(memory_format=torch.channels_last)
    y = torch.zeros(size, dtype=torch.int64, device=device)
    model = FlatModel(models.build(config.model, shape, classes, config.seed).eval(), device)
    alone = replace(config, parts=(), batch_size=size, local_epochs=None, local_steps=2)
    train(Client(0, 1, alone, classes, model, model.weights.clone(), x, y, {}, {}))
    with torch.no_grad():
        model.module(torch.zeros(config.eval_batch, *shape, device=device))
