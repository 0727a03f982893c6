"""What clients send to the server besides their model, and what the server receives of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


@dataclass
class Upload:
    """The upload of one client for one part, besides the model.

    `sum`: tensors that the server needs only as a sum over the clients; they are added exactly, at the actors.
    `each`: small arrays and numbers that the server needs client by client.
    `rows`: arrays that arrive with `each`, with a number of rows that may differ between clients. All other shapes
    must be the same for all clients; --on-client-error decides what happens to a client that deviates.
    `metadata`: arrives with `each` but is not counted as uploaded: figures to record, or a copy of the model.

    The names in `each`, `rows` and `metadata` share one namespace.
    """

    sum: dict[str, torch.Tensor] = field(default_factory=dict)
    each: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, torch.Tensor] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    def client_by_client(self) -> dict[str, Any]:
        """Return `each`, `rows` and `metadata` as one dict."""
        return self.each | self.rows | self.metadata

    def twice(self) -> str | None:
        """Return what is wrong where two of `each`, `rows` and `metadata` have an entry of the same name."""
        names = [(name, kind) for kind in ("each", "rows", "metadata") for name in getattr(self, kind)]
        known: set[str] = set()
        for name, kind in names:
            if name in known:
                return f"upload has {name!r} in {kind} and in another of each, rows and metadata"
            known.add(name)
        return None

    def shapes(self, name: str) -> dict[str, tuple[int | None, ...]]:
        """The shapes that the uploads of all clients for the part `name` must have in common."""
        found = {f"{name} {key} (summed)": tuple(value.shape) for key, value in self.sum.items()}
        found |= {f"{name} {key}": _shape(value) for key, value in self.each.items()}
        return found | {f"{name} {key}": (None, *value.shape[1:]) for key, value in self.rows.items()}


def _shape(value: Any) -> tuple[int, ...]:
    try:
        return np.shape(value)
    except ValueError:  # lists in lists, of unequal lengths
        return ()


@dataclass
class Uploads:
    """The uploads of all clients of one pass for one part, as the server receives them.

    `sum` has the sums over the clients, on the server's device. `each` has pairs of a client's id and its `each`,
    `rows` and `metadata` in one dict, in order of ids; these arrays are in the host's object store and read-only.
    """

    sum: dict[str, torch.Tensor]
    each: list[tuple[int, dict[str, Any]]]

    def stacked(self, name: str, device: torch.device) -> torch.Tensor:
        """The entry `name` of every client in `each`, stacked into one tensor on the device."""
        import torch  # imported here, since the driver runs without torch

        return torch.as_tensor(np.stack([each[name] for _, each in self.each]), device=device)
