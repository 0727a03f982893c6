"""Conversion between NumPy arrays, which are sent and stored, and tensors. Importing this does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


def to_device(value: Any, device: torch.device) -> Any:
    """The value with arrays (also nested in dicts and lists) as tensors on the device; anything else is unchanged.

    Arrays are copied, since those from the object store are shared by all processes of the node.
    """
    if isinstance(value, np.ndarray):
        import torch

        return torch.tensor(value, device=device)
    if isinstance(value, dict):
        return {k: to_device(v, device) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_device(v, device) for v in value)
    return value


def upload_all(arrays: Sequence[np.ndarray], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Arrays that differ in length at most, as tensors on the device, by one transfer for all of them."""
    import torch

    if not arrays:
        return ()
    together = torch.from_numpy(np.concatenate(arrays))
    return pinned(together, device).to(device, non_blocking=True).split([len(array) for array in arrays])


def pinned(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor in memory from which CUDA copies while the host goes on; for other devices the tensor itself."""
    return tensor.pin_memory() if device.type == "cuda" and tensor.numel() else tensor


def to_host(value: Any) -> Any:
    """The value with tensors (also nested in dicts and lists) as arrays on the host; anything else is unchanged."""
    if hasattr(value, "detach"):
        return value.detach().cpu().numpy()
    if isinstance(value, dict):
        return {k: to_host(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_host(v) for v in value)
    return value


def size_in_bytes(value: Any) -> int:
    """The bytes that sending the value would take: those of its arrays and tensors, and 8 for each number."""
    if hasattr(value, "nbytes"):
        return value.nbytes
    if isinstance(value, dict):
        return sum(size_in_bytes(v) for v in value.values())
    if isinstance(value, list | tuple):
        return sum(size_in_bytes(v) for v in value)
    return 8
