"""FedBN (arXiv 2102.07623): batch-norm layers, with their parameters and statistics, stay at the clients."""

from dataclasses import dataclass

from torch.nn.modules.batchnorm import _BatchNorm

from raysim.methods.base import Part


@dataclass(frozen=True)
class FedBN(Part):
    """FedBN: every client keeps its own batch-norm; needs --evaluation clients."""

    predicts_with_personal = True

    def personal(self, module, t):
        return tuple(f"{name}.*" for name, layer in module.named_modules() if isinstance(layer, _BatchNorm))
