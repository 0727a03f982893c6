"""FedProx (Li et al., 2020): a proximal term keeps local models near the global one."""

from dataclasses import dataclass

from raysim.methods.base import Part
from raysim.methods.common.loss_terms import towards
from raysim.settings import setting


@dataclass(frozen=True)
class FedProx(Part):
    """FedProx: adds μ/2·‖w − w_t‖² to the local loss."""

    mu: float = setting(0.01, "weight of the proximal term (μ)", minimum=0)

    def pull(self, clients, weights, start):
        return towards(weights, start, self.mu) if self.mu else None
