"""Terms of a local loss that depend on the weights alone, for one client and for the clients of a fused step."""

from functools import reduce

import torch

from raysim.training.client import Client
from raysim.training.fused import FusedStep


def product(client: Client, flat: torch.Tensor) -> torch.Tensor:
    """⟨flat, w⟩ over the parameters, whose gradient is `flat`."""
    pairs = zip(client.model.parameters, client.model.parameter_names, strict=True)
    return reduce(torch.add, ((w * client.model.view(flat, name)).sum() for w, name in pairs))


def products(step: FusedStep, rows: torch.Tensor) -> torch.Tensor:
    """`product` for each client of a fused step, with its row."""
    layout = step.model.model
    pairs = zip(step.model.parameters, layout.parameter_names, strict=True)
    return reduce(torch.add, ((w * layout.view(rows, name)).flatten(1).sum(1) for w, name in pairs))


def squared_distance(client: Client) -> torch.Tensor:
    """‖w − w_t‖², to the global parameters that were broadcast."""
    pairs = zip(client.model.parameters, client.global_parameters, strict=True)
    return reduce(torch.add, ((w - start).square().sum() for w, start in pairs))


def squared_distances(step: FusedStep) -> torch.Tensor:
    """`squared_distance` for each client of a fused step."""
    pairs = zip(step.model.parameters, step.model.global_parameters, strict=True)
    return reduce(torch.add, ((w - start).square().flatten(1).sum(1) for w, start in pairs))
