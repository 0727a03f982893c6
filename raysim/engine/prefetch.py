"""Uploads the pixels of the next clients while the current ones train, so that a GPU need not wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

Read = Callable[[int], tuple[np.ndarray, np.ndarray]]


class SideStream:
    """CUDA's second queue of work: copies in it are done beside the kernels of the first."""

    def __init__(self, device: torch.device):
        self.device, self.stream = device, torch.cuda.Stream(device)

    def upload(self, array: np.ndarray) -> torch.Tensor:
        """Begin to copy an array to the device, from memory that CUDA reads without the host."""
        pinned = torch.from_numpy(np.empty_like(array)).pin_memory()
        pinned.numpy()[...] = array
        with torch.cuda.stream(self.stream):
            return pinned.to(self.device, non_blocking=True)

    def join(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let the first queue wait for these tensors; only then may it read them, and their memory be used again."""
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(self.stream)
        for tensor in tensors:
            tensor.record_stream(current)


class Prefetch:
    """Reads clients' pixels and labels; with a side stream the next ones' are on the device before their turn."""

    def __init__(self, read: Read, side: Any | None):
        self.read, self.side = read, side
        self.ahead: dict[int, tuple[torch.Tensor, ...]] = {}

    @classmethod
    def on(cls, device: torch.device, read: Read) -> Prefetch:
        return cls(read, SideStream(device) if device.type == "cuda" else None)

    def begin(self, clients: Iterable[int]) -> None:
        """Begin to upload these clients; what was uploaded and not taken is let go."""
        self.ahead = {}
        if self.side is not None:
            self.ahead = {client: tuple(map(self.side.upload, self.read(client))) for client in clients}

    def take(self, client: int) -> tuple[Any, ...]:
        """A client's pixels and labels: tensors where they were uploaded ahead, otherwise arrays."""
        if self.side is None or client not in self.ahead:
            return self.read(client)
        found = self.ahead.pop(client)
        self.side.join(found)
        return found
