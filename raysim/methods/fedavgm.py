"""FedAvgM (Hsu et al., 2019): the server adds momentum to the clients' mean change."""

from dataclasses import dataclass

from raysim.methods.common.server_optimizer import ServerOptimizer
from raysim.settings import setting


@dataclass(frozen=True)
class FedAvgM(ServerOptimizer):
    """FedAvgM: v ← βv + Δ, x ← x + ηv, with Δ the clients' mean change of the parameters."""

    lr: float = setting(1.0, "learning rate of the server (η)", above=0)
    momentum: float = setting(0.9, "momentum of the server (β)", minimum=0, maximum=1)

    def step(self, state, change):
        state["v"] = self.momentum * state.get("v", 0.0) + change
        return self.lr * state["v"]
