"""Server optimisers (Reddi et al., 2021): the mean change of the clients' models takes the place of a gradient."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from raysim.methods.base import Part
from raysim.settings import setting
from raysim.tensors import to_device, to_host

if TYPE_CHECKING:
    from raysim.engine.server import Server

State = dict[str, torch.Tensor]  # of one model, between rounds


@dataclass(frozen=True)
class ServerOptimizer(Part, ABC):
    """A part whose server moves the global parameters by `step` instead of to the clients' mean."""

    @abstractmethod
    def step(self, state: State, change: torch.Tensor) -> torch.Tensor:
        """Return how far the parameters move, given the clients' mean change Δ_t in float64.

        `state` is empty at first.
        """

    def aggregate(self, server: "Server", before: np.ndarray, mean: np.ndarray) -> np.ndarray:
        kept = server.state[self.name].get(str(server.averaged_model), {})
        state = {name: value.double() for name, value in kept.items()}
        start, end = (to_device(flat, server.device).double() for flat in (before, mean))
        change = end - start
        moved = end + (self.step(state, change) - change)  # the mean itself where the step is the change
        server.state[self.name][str(server.averaged_model)] = {name: v.float() for name, v in state.items()}
        return to_host(moved.float())


@dataclass(frozen=True)
class AdaptiveOptimizer(ServerOptimizer):
    """A server optimiser x ← x + η·m/(√v + τ), with m the running mean of Δ, without bias correction.

    Subclasses say what v becomes.
    """

    lr: float = setting(0.01, "learning rate of the server (η)", above=0)
    beta1: float = setting(0.9, "decay of the running mean of changes (β1)", minimum=0, maximum=1)
    tau: float = setting(1e-3, "adaptivity, added to the root; v starts at its square (τ)", above=0)

    @abstractmethod
    def second_moment(self, v: torch.Tensor, squared: torch.Tensor) -> torch.Tensor:
        """Return v_t from v_{t−1} and Δ_t²."""

    def step(self, state: State, change: torch.Tensor) -> torch.Tensor:
        m, v = state.get("m", 0.0), state.get("v", torch.full_like(change, self.tau**2))
        state["m"] = self.beta1 * m + (1 - self.beta1) * change
        state["v"] = self.second_moment(v, change.square())
        return self.lr * state["m"] / (state["v"].sqrt() + self.tau)
