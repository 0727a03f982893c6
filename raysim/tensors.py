"""Arrays and tensors: what travels is NumPy, what computes is torch. Importing this does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def to_device(value, device: torch.device):
    """Arrays (nested in dicts and lists) as tensors with memory of their own; the rest as it is.

    The copy matters: what comes out of the object store is shared by all processes of the node.
    """
    if isinstance(value, np.ndarray):
        import torch

        return torch.tensor(value, device=device)
    if isinstance(value, dict):
        return {k: to_device(v, device) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_device(v, device) for v in value)
    return value


def to_host(value):
    """The way back: tensors as arrays."""
    if hasattr(value, "detach"):
        return value.detach().cpu().numpy()
    if isinstance(value, dict):
        return {k: to_host(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_host(v) for v in value)
    return value


def size_in_bytes(value) -> int:
    """What sending it would cost: arrays and tensors by their bytes, numbers as 8."""
    if hasattr(value, "nbytes"):
        return value.nbytes
    if isinstance(value, dict):
        return sum(size_in_bytes(v) for v in value.values())
    if isinstance(value, list | tuple):
        return sum(size_in_bytes(v) for v in value)
    return 8
