"""What parts write at the server, held to what everyone else relies on: models, metrics, shared datasets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.data.synthetic_tables import SOFT, images_of, labels_of
from raysim.engine.fixed_point import MEAN_LIMIT
from raysim.engine.round_metrics import ENGINE_NAMES
from raysim.methods.common.contract import HookError, number, shown

if TYPE_CHECKING:
    import pyarrow as pa

READ_ONLY = "; models are changed in `setup` and `update` only, and what clients sent or share nowhere"


def usable_models(models: object, size: int) -> list[np.ndarray]:
    """Return the models that a hook has left, as arrays of their own that can be written; a HookError if they are none.

    What it lets pass the clients can train: their update, at first these weights, has the same limit.
    """
    if not (isinstance(models, list) and models):
        raise HookError(f"it left {shown(models)} as `server.weights`, where a list of at least one array belongs")
    return [usable_model(each, size, f"it left model {i} of `server.weights` as") for i, each in enumerate(models)]


def usable_model(model: object, size: int, what: str) -> np.ndarray:
    """Return one model as an array of its own; a HookError that begins with `what` if it is none."""
    if not (isinstance(model, np.ndarray) and model.shape == (size,) and model.dtype.kind == "f"):
        raise HookError(f"{what} {shown(model)}, where a float32 array of shape ({size},) belongs")
    if size:
        low, high = model.min(), model.max()  # both are not a number where one value is not
        if not max(-low, high) < MEAN_LIMIT:
            found = f"{max(-low, high):.3g}" if math.isfinite(low) and math.isfinite(high) else "no finite numbers"
            raise HookError(f"{what} weights of {found}, not below {MEAN_LIMIT:.3g}; lower its learning rate")
    own = model.flags.owndata and model.flags.c_contiguous and model.dtype == np.float32
    return model if own else np.array(model, np.float32)


def usable_metrics(metrics: object) -> dict[str, float]:
    """Return what a part reports, as Python numbers; a HookError where it is none, or has a name of the engine's."""
    if not isinstance(metrics, dict):
        raise HookError(f"it left {shown(metrics)} as `server.metrics`, where a dict belongs")
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        place = f"`server.metrics[{shown(name)}]`"
        if not (isinstance(name, str) and name):
            raise HookError(f"it set {place}; the name of a metric is a text")
        if name in ENGINE_NAMES:
            raise HookError(f"it set {place}, which the engine itself reports; take another name")
        found = number(value)
        if found is None:
            raise HookError(f"it set {place} to {shown(value)}, where a number belongs")
        numbers[name] = found
    return numbers


def usable_table(table: pa.Table, shape: tuple[int, ...], classes: int) -> pa.Table:
    """Return a dataset to be shared, its columns in one piece; a HookError if clients could not train on its images."""
    if not hasattr(table, "combine_chunks"):
        raise HookError(f"it shares {shown(table)}, where a table of `synthetic_tables.make_table` belongs")
    missing = {"image", "label", "client", "round"} - {*table.column_names}
    if missing or not table.num_rows:
        what = f"without the column '{min(missing)}'" if missing else "without an image"
        raise HookError(f"it shares a table {what}")
    table = table.combine_chunks()
    if "shape" not in dir(table.schema.field("image").type):
        raise HookError(f"it shares images of type {table.schema.field('image').type}, where tensors belong")
    images, labels = images_of(table), labels_of(table)
    if images.shape[1:] != tuple(shape) or images.dtype != np.float32:
        raise HookError(
            f"it shares {shown(images)}, where float32 images of shape {tuple(shape)}, as the data's, belong"
        )
    if not np.isfinite([images.min(), images.max()]).all():
        raise HookError("it shares images with values that are not finite")
    if SOFT in table.column_names:
        fits = labels.shape[1:] == (classes,) and np.isfinite(labels).all()
    else:
        fits = labels.dtype.kind == "i" and labels.max() < classes
    if not fits:
        raise HookError(f"it shares images whose labels are {shown(labels)}, not of {classes} classes")
    return table


def read_only(value: Any) -> Any:
    """Return a value whose arrays (also nested in dicts and lists) cannot be written, as those from Ray's store."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            read_only(inner)
    return value
