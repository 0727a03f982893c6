"""FedProx (Li et al., 2020): a proximal term keeps local models near the global one."""

from dataclasses import dataclass

import torch

from raysim.methods.base import Part
from raysim.settings import setting


@dataclass(frozen=True)
class FedProx(Part):
    """FedProx: adds μ/2·‖w − w_t‖² to the local loss."""

    mu: float = setting(0.01, "weight of the proximal term (μ)", minimum=0)

    def pull(self, clients, weights, start):
        if self.mu == 0:
            return None
        apart = weights - start
        gradient = self.mu * apart
        # ½⟨w − w_t, gradient⟩ in one operation; with beta 0 what would be added to it is ignored.
        value = torch.baddbmm(apart[:, :1, None], apart[:, None], gradient[:, :, None], beta=0, alpha=0.5)
        return value[:, 0, 0], gradient
