"""Reading the model that a run ended with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from raysim import models
from raysim.errors import InputError
from raysim.storage.formats import DamagedFile
from raysim.storage.remote import readable

if TYPE_CHECKING:
    from raysim.config import RunConfig
    from raysim.data import Dataset

FILE = "model.safetensors"


def read_weights(path: Path, own: Mapping[str, Any], model: str) -> dict[str, np.ndarray]:
    """The weights in a file by name; of several models the first's. They must have the names and shapes of `own`.

    Where a file has several models, their numbers come before the names, which a network's own may begin with too.
    """
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise DamagedFile(path, str(error)) from None
    first = {name.removeprefix("0."): value for name, value in weights.items() if name.startswith("0.")}
    weights = first if first.keys() == own.keys() else weights
    if weights.keys() != own.keys() or any(weights[name].shape != tuple(own[name].shape) for name in own):
        raise DamagedFile(path, f"it holds other weights than those of the model {model}")
    return weights


def starting_weights(config: RunConfig, dataset: Dataset) -> np.ndarray | None:
    """The flat weights that `--start-from` names; None where a run starts from random ones."""
    if config.start_from is None:
        return None
    import torch

    from raysim.models.flat import FlatModel

    module = models.build(config.model, dataset.shape, dataset.classes, config.seed)
    model = FlatModel(module.eval(), torch.device("cpu"))
    with readable(config.start_from, FILE) as place:
        path = place / FILE if place.is_dir() else place
        if not path.exists():
            raise InputError(f"--start-from: there is no '{path}'; give a finished run, or a file of weights")
        weights = read_weights(path, model.export(model.weights), config.model)
    return model.packed(weights).numpy()
