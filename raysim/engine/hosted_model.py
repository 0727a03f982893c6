"""The model a client actor hosts, with the broadcast it holds and the data it reads: for training and evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from raysim.data.federated import FederatedData
from raysim.data.object_store import by_reference, fetch, same_object
from raysim.engine.messages import Broadcast, States
from raysim.state import state_to_device
from raysim.tensors import to_device
from raysim.training.client import PERSONAL, initial_model
from raysim.training.device import empty_cache, prepare_torch
from raysim.training.shared_images import SharedImages

if TYPE_CHECKING:
    from raysim.config import RunConfig


ClientStates = dict[int, dict[str, Any]]  # client -> its state, as arrays in the store


class HostedModel:
    """One model on one device, into which the weights of whichever client or test batch comes next are loaded."""

    def __init__(self, config: RunConfig, data: FederatedData, use_gpu: bool = True):
        self.config, self.data = config, data
        self.device = prepare_torch(config, use_gpu)
        self.model = initial_model(config, data, self.device)
        self.normalisation = data.normalisation.on(self.device)
        self.broadcast: Broadcast  # the one held
        self.version = 0  # of the broadcast held
        self.weights: list[torch.Tensor] = []
        self.extras: dict[str, dict[str, Any]] = {}
        self.shared: dict[str, SharedImages] = {}
        self.shared_references: dict[str, Any] = {}
        self.kept: dict[str, Any] = {}  # what parts make once of a broadcast

    def hold(self, broadcast: Broadcast) -> bool:
        """Fetch a broadcast unless it is held already; says whether it is a new one."""
        self.broadcast = broadcast
        if broadcast.version == self.version:
            return False
        self.weights = to_device(fetch(broadcast.weights), self.device)
        self.extras = to_device(fetch(broadcast.extras) or {}, self.device)
        self.kept = {}
        self._hold_shared(broadcast.shared or {})
        self.version = broadcast.version
        return True

    def _hold_shared(self, references: dict[str, Any]) -> None:
        """Hold the shared datasets; one that is held already stays, with its copy on an accelerator.

        Zero-copy on the host: a table stays in the store, however many clients read it.
        """
        before, held = self.shared_references, self.shared
        self.shared = {
            name: held[name] if name in held and same_object(before[name], reference)
            else SharedImages(fetch(reference), self.device)
            for name, reference in references.items()
        }  # fmt: skip
        self.shared_references = dict(references)

    def free_memory(self) -> None:
        """Give back the device's memory that is held only to be faster: copies of shared datasets, torch's cache."""
        self.kept = {}
        for shared in self.shared.values():
            shared.drop()
        empty_cache(self.device)

    def personal_mask(self) -> torch.Tensor | None:
        """Which weights stay at the clients in this round."""
        return self.model.personal_mask(self.config.parts, self.broadcast.t)

    def load(self, weights: torch.Tensor, mask: torch.Tensor | None, state: dict[str, dict[str, Any]]) -> None:
        """Load a client's model: the broadcast weights, with its own where it keeps some to itself."""
        self.model.load(weights)
        if mask is not None and PERSONAL in state:
            self.model.weights[mask] = state[PERSONAL]["weights"]

    def read_states(self, states: States) -> ClientStates:
        """The states of these clients; an object that holds those of many clients is read once for all of them."""
        found: ClientStates = {}
        for reference, clients in by_reference(states):
            several = dict(fetch(reference))
            found |= {client: several[client] for client in clients}
        return found

    def state_of(self, client_id: int, states: ClientStates) -> dict[str, dict[str, Any]]:
        """A copy of what the client kept from its last pass, on the device."""
        return state_to_device(states[client_id], self.device) if client_id in states else {}

    def to_batch(self, x: np.ndarray | torch.Tensor, y: np.ndarray | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Pixels and labels as normalised tensors on the device, where tensors are already."""
        # Changed to channels-last at the end: means and deviations per channel go over long runs before.
        pixels = self.normalisation.normalise_(to_device(x, self.device).to(torch.float32))
        return pixels.contiguous(memory_format=torch.channels_last), to_device(y, self.device)
