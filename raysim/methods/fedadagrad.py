"""FedAdagrad (Reddi et al., 2021): the server takes steps of Adagrad along the clients' mean change."""

from dataclasses import dataclass

from raysim.methods.common.server_optimizer import AdaptiveOptimizer
from raysim.settings import setting


@dataclass(frozen=True)
class FedAdagrad(AdaptiveOptimizer):
    """FedAdagrad: Adagrad at the server, x ← x + η·m/(√v + τ) with v ← v + Δ²."""

    beta1: float = setting(0.0, "decay of the running mean of changes (β1)", minimum=0, maximum=1)

    def second_moment(self, v, squared):
        return v + squared
