"""FedProx (Li et al., 2020): a proximal term keeps local models near the global one."""

from dataclasses import dataclass

from raysim.methods.base import Part
from raysim.settings import setting


@dataclass(frozen=True)
class FedProx(Part):
    """FedProx: adds μ/2·‖w − w_t‖² to the local loss."""

    mu: float = setting(0.01, "weight of the proximal term (μ)", minimum=0)

    def loss(self, client, step):
        if self.mu == 0:
            return None
        pairs = zip(client.model.parameters, client.global_parameters, strict=True)
        return self.mu / 2 * sum((w - start).square().sum() for w, start in pairs)

    def fused_loss(self, clients, step):
        if self.mu == 0:
            return None
        pairs = zip(step.model.parameters, step.model.global_parameters, strict=True)
        return self.mu / 2 * sum((w - start).square().flatten(1).sum(1) for w, start in pairs)
