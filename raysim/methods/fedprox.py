"""FedProx (Li et al., 2020): a proximal term keeps local models near the global one."""

from dataclasses import dataclass

from raysim.methods.base import Part
from raysim.methods.common.loss_terms import squared_distance, squared_distances
from raysim.settings import setting


@dataclass(frozen=True)
class FedProx(Part):
    """FedProx: adds μ/2·‖w − w_t‖² to the local loss."""

    mu: float = setting(0.01, "weight of the proximal term (μ)", minimum=0)

    def loss(self, client, step):
        return self.mu / 2 * squared_distance(client) if self.mu else None

    def fused_loss(self, clients, step):
        return self.mu / 2 * squared_distances(step) if self.mu else None
