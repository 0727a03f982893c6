"""FedBN (arXiv 2102.07623): batch-norm layers, with their parameters and statistics, stay at the clients."""

from dataclasses import dataclass
from typing import Literal

from torch.nn.modules.batchnorm import _BatchNorm

from raysim.methods.base import Part
from raysim.settings import setting


@dataclass(frozen=True)
class FedBN(Part):
    """FedBN: every client keeps its own batch-norm; needs --evaluation clients."""

    keep: Literal["all", "statistics"] = setting(
        "all",
        "what of batch-norm stays at the clients: all, or the running statistics only, its weight and bias averaged",
    )

    predicts_with_personal = True

    def personal(self, module, t):
        kept = "*" if self.keep == "all" else "running_*"
        return tuple(f"{name}.{kept}" for name, layer in module.named_modules() if isinstance(layer, _BatchNorm))
