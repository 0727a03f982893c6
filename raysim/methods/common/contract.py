"""The contract of the hooks: what each may give back. The engine asks a part by `Part.ask`, which holds it to this."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from raysim.methods.common.uploads import Upload
from raysim.privacy.figures import Figure


class HookError(ValueError):
    """What a hook gave back, or left behind, is of no use; the text begins with `it`."""


def fault(hook: str, found: Any, arguments: tuple[Any, ...]) -> str | None:
    """What is wrong with what a hook returned for these arguments; None if nothing is."""
    fits, wanted = RESULTS[hook]
    try:
        if fits(found, *arguments):
            uploads = found if hook == "reply" else [found] if hook == "end" and found else []
            return next((f"its {twice}" for upload in uploads if (twice := upload.twice())), None)
    except (TypeError, ValueError, AttributeError, OverflowError):  # it cannot even be looked at as it should
        pass
    return f"it returned {shown(found)}, where {wanted} belongs"


def states_of(hook: str, arguments: tuple[Any, ...]) -> list[tuple[str, Any]]:
    """The states, by part, that a hook which was given these arguments may have changed."""
    if hook in ("check", "idle", "passes", "group_size", "personal", "predict"):
        return []
    holders = arguments[0] if isinstance(arguments[0], list) else [arguments[0]]  # the server, a client or several
    return [pair for holder in holders for pair in holder.state.items()]


def shown(value: Any) -> str:
    """A value in a few words.

    >>> shown("everyone"), shown([1, 2]), shown(np.zeros((2, 3)))
    ("'everyone'", 'a list of 2', 'a float64 array of shape (2, 3)')
    """
    kind = type(value).__name__
    if value is None or isinstance(value, str | int | float):
        text = repr(value)
        return text if len(text) <= 40 else f"{text[:40]}…"
    if is_array(value):
        sort = "array" if isinstance(value, np.ndarray | np.generic) else "tensor"
        return f"a {str(value.dtype).removeprefix('torch.')} {sort} of shape {tuple(value.shape)}"
    if isinstance(value, list | tuple | dict | set):
        return f"a {kind} of {len(value)}"
    return "a generator (it has a `yield`)" if kind == "generator" else f"an object of the class {kind}"


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of torch, which this module does not import."""
    return hasattr(value, "detach") and hasattr(value, "dtype")


def is_array(value: Any) -> bool:
    """Whether it is an array of NumPy or a tensor."""
    return isinstance(value, np.ndarray | np.generic) or is_tensor(value)


def number(value: Any) -> int | float | None:
    """The Python number that a value of any library holds: its own, NumPy's, a tensor of one element; None: it is none.

    >>> number(np.float32(0.5)), number(np.int64(3)), number("3")
    (0.5, 3, None)
    """
    if is_array(value):
        value = value.item() if math.prod(value.shape) == 1 else None
    if isinstance(value, numbers.Integral):
        return int(value) if abs(int(value)) < 2**63 else None
    if isinstance(value, complex) or not isinstance(value, numbers.Number):
        return None
    return float(value)  # type: ignore[arg-type]


def sendable(value: Any) -> bool:
    """Whether a value can be sent as it is: arrays, tensors, numbers and texts, also nested."""
    if isinstance(value, dict):
        return all(map(sendable, value.values()))
    if isinstance(value, list | tuple):
        return all(map(sendable, value))
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufcSU"
    if is_tensor(value):  # as an array of NumPy, which has neither
        return str(value.layout) == "torch.strided" and str(value.dtype) != "torch.bfloat16"
    return value is None or isinstance(value, str | bytes | numbers.Number)


def is_upload(found: Any) -> bool:
    """Whether it is an upload whose fields are what they should be."""
    if not isinstance(found, Upload):
        return False
    fields = (found.sum, found.each, found.rows, found.metadata)
    return (
        all(isinstance(field, dict) and all(isinstance(name, str) for name in field) for field in fields)
        and all(
            is_tensor(value) and not value.is_complex() and str(value.layout) == "torch.strided"
            for value in found.sum.values()
        )
        and all(is_array(value) and len(value.shape) for value in found.rows.values())
        and all(map(sendable, fields[1:]))
    )


def _nothing(found: Any, *_: Any) -> bool:
    return found is None


def _route(found: Any, server: Any, t: int, clients: list[int]) -> bool:
    models = range(len(server.weights))
    return found is None or (
        isinstance(found, dict) and {*found} <= {*clients} and all(i in models for i in found.values())
    )


def _labelled(found: Any, *_: Any) -> bool:
    if found is None:
        return True
    vectors, labels = found
    return is_array(vectors) and is_array(labels) and len(vectors.shape) == 2 and len(labels) == len(vectors)


def _batch(found: Any, client: Any, x: Any, y: Any) -> bool:
    images, labels = found
    return (
        isinstance(found, tuple | list)
        and is_tensor(images) and images.is_floating_point() and images.shape[1:] == x.shape[1:]
        and is_tensor(labels) and len(labels) == len(images) > 0
        and (labels.shape[1:] == (client.classes,) if labels.ndim > 1 else not labels.is_floating_point())
    )  # fmt: skip


def _pull(found: Any, clients: list[Any], weights: Any, start: Any) -> bool:
    if found is None:
        return True
    value, gradient = found
    return is_tensor(gradient) and gradient.shape == weights.shape and (value is None or value.shape == (len(clients),))


def _finite(value: Any) -> bool:
    found = number(value)
    return found is not None and math.isfinite(found)


def _real(value: Any) -> bool:
    return is_tensor(value) and value.is_floating_point()


UPLOAD = "an Upload (dicts by name: of tensors in `sum` and `rows`, of arrays, numbers and texts in `each`, `metadata`)"
FEATURES = "None, or vectors and as many labels,"

# Hook -> whether what it returned, followed by what it was given, is right; and what is.
RESULTS: dict[str, tuple[Callable[..., bool], str]] = {
    **dict.fromkeys(("check", "setup", "receive", "update", "begin", "begin_fused"), (_nothing, "nothing")),
    "idle": (lambda found, *_: found is None or isinstance(found, str), "None or a text"),
    "exchange": (
        lambda found, *_: found is None or (isinstance(found, str) and found in ("all", "cohort")),
        "None, 'all' or 'cohort'",
    ),
    "passes": (lambda found: found is None or (isinstance(found, int) and found >= 0), "None or a whole number"),
    "group_size": (lambda found, *_: isinstance(found, int) and found >= 1, "a whole number of at least 1"),
    "broadcast": (
        lambda found, *_: isinstance(found, dict) and sendable(found), "a dict of arrays, tensors, numbers and texts"
    ),
    "route": (_route, "None, or a dict of these clients and indices of models"),
    "aggregate": (lambda found, *_: is_array(found), "an array"),
    "sample_features": (_labelled, FEATURES),
    "shared_means": (_labelled, FEATURES),
    **dict.fromkeys(
        ("certificate", "model_certificate"),
        (
            lambda found, *_: isinstance(found, list) and all(isinstance(one, Figure) for one in found),
            "a list of Figure",
        ),
    ),
    "reply": (
        lambda found, clients: isinstance(found, list | tuple) and len(found) == len(clients)
        and all(map(is_upload, found)),
        f"a list with one for each client, {UPLOAD},",
    ),
    "end": (lambda found, *_: found is None or is_upload(found), f"None or {UPLOAD}"),
    "batch": (_batch, "a pair of floating images like those given and as many labels, or soft labels of all classes,"),
    "extra": (
        lambda found, client: found is None or (_real(found) and found.shape[1:] == client.x.shape[1:]),
        "None or a tensor of images like the client's",
    ),
    "ce_weight": (
        lambda found, *_: (is_tensor(found) and not found.shape) or _finite(found), "a finite number"
    ),
    "loss": (lambda found, *_: found is None or (_real(found) and not found.shape), "None or a scalar tensor"),
    "pull": (_pull, "None, or a value for each client (or None) and gradients in the shape of the weights,"),
    "fused_loss": (
        lambda found, clients, *_: found is None or (_real(found) and found.shape == (len(clients),)),
        "None or a tensor with a value for each client",
    ),
    "weight": (
        lambda found, *_: found is None or (_finite(found) and found >= 0),
        "None or a finite number that is not negative",
    ),
    "personal": (
        lambda found, *_: isinstance(found, tuple | list) and all(isinstance(one, str) for one in found),
        "a tuple of name patterns",
    ),
    "predict": (
        lambda found, models, x: _real(found) and found.ndim == 2 and len(found) == len(x),
        "a row of logits for each image",
    ),
}  # fmt: skip
