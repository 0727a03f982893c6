"""FedYogi (Reddi et al., 2021): the server takes steps of Yogi along the clients' mean change."""

from dataclasses import dataclass

from raysim.methods.common.server_optimizer import AdaptiveOptimizer
from raysim.settings import setting


@dataclass(frozen=True)
class FedYogi(AdaptiveOptimizer):
    """FedYogi: Yogi at the server, x ← x + η·m/(√v + τ) with v ← v − (1 − β2)·Δ²·sign(v − Δ²)."""

    beta2: float = setting(0.99, "decay of the running mean of squared changes (β2)", minimum=0, maximum=1)

    def second_moment(self, v, squared):
        return v - (1 - self.beta2) * squared * (v - squared).sign()
