"""Reading the model that a run ended with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from raysim import models
from raysim.engine.fixed_point import MEAN_LIMIT
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
    except (AttributeError, LookupError, TypeError, ValueError):  # of a type that NumPy does not have
        raise DamagedFile(path, "it holds values of another type than float16, float32 or float64") from None
    first = {name.removeprefix("0."): value for name, value in weights.items() if name.startswith("0.")}
    weights = first if first.keys() == own.keys() else weights
    if weights.keys() != own.keys() or any(weights[name].shape != tuple(own[name].shape) for name in own):
        raise DamagedFile(path, f"it holds other weights than those of the model {model}")
    return weights


def starting_weights(config: RunConfig, dataset: Dataset, needed: bool = True) -> np.ndarray | None:
    """Return the flat weights that `--start-from` names; None where a run starts from random ones.

    Also None where there is nothing any more in that place, if they are not `needed`.
    """
    if config.start_from is None:
        return None
    import torch

    from raysim.models.flat import FlatModel

    module = models.build(config.model, dataset.shape, dataset.classes, config.seed)
    model = FlatModel(module.eval(), torch.device("cpu"))
    own = model.export(model.weights)
    with readable("--start-from", config.start_from, FILE, "config.json", "summary.json") as place:
        inside = f"{config.start_from}/{FILE}" if os.path.isdir(place) else config.start_from
        path = place / FILE if os.path.isdir(place) else place
        if os.path.isfile(place / "config.json") and not os.path.isfile(place / "summary.json"):
            raise InputError(
                f"--start-from: the run '{config.start_from}' is not finished; `python -m raysim resume` it first, or "
                "give a file of weights"
            )
        if not os.path.lexists(path):
            if not needed:
                return None
            raise InputError(f"--start-from: there is no '{inside}'; give a finished run, or a file of weights")
        if not os.path.isfile(path):
            raise InputError(f"--start-from: '{inside}' is no file to read; give a finished run, or a file of weights")
        try:
            weights = read_weights(path, own, config.model)
            _check_values(path, weights, own)
        except DamagedFile as error:
            raise InputError(
                f"--start-from: '{inside}': {error.reason}; give a finished run, or a file of weights of this model"
            ) from None
    return model.packed(weights).numpy()


def _check_values(path: Path, weights: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray]) -> None:
    """Refuse weights that no client could send back, before a client is blamed for them."""
    for name, value in weights.items():
        if np.issubdtype(own[name].dtype, np.floating):
            if not np.issubdtype(value.dtype, np.floating):
                raise DamagedFile(path, f"its {name} has values of type {value.dtype}, which are no weights")
            if not (np.abs(value.astype(np.float64)) < MEAN_LIMIT).all():  # also where one is not a number
                raise DamagedFile(path, f"its {name} has values that are not finite, or beyond {MEAN_LIMIT:.3g}")
