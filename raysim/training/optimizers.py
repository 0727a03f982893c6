"""SGD and Adam by torch's fused kernels, through the functions that torch.optim's own classes call.

An instance of those classes imports torch's compiler: 70 MB and more than a second in every actor, for nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd


class Optimizer(ABC):
    """An optimiser that steps tensors by their `grad`; tensors without one are left as they are."""

    def __init__(self, parameters: Sequence[Tensor]):
        self.parameters = parameters

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters that have a gradient."""
        used = [(i, p, p.grad) for i, p in enumerate(self.parameters) if p.grad is not None]
        if used:
            which, parameters, gradients = ([*column] for column in zip(*used, strict=True))
            self.update(parameters, gradients, which)

    @torch.no_grad()
    def reset(self) -> None:
        """Forget all steps, in the same memory."""
        for tensor in self.state():
            tensor.zero_()

    @abstractmethod
    def state(self) -> list[Tensor]:
        """What it remembers of its steps."""

    @abstractmethod
    def update(self, parameters: list[Tensor], gradients: list[Tensor], which: list[int]) -> None:
        """Update these parameters by their gradients; `which` are their indices in `self.parameters`."""


class Sgd(Optimizer):
    """SGD as in torch.optim.SGD, without dampening."""

    def __init__(self, parameters: Sequence[Tensor], *, lr: float, momentum: float = 0.0, weight_decay: float = 0.0):
        super().__init__(parameters)
        self.settings: dict[str, Any] = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        self.settings |= {"dampening": 0.0, "nesterov": False, "maximize": False, "fused": True}
        self.velocities: dict[int, Tensor | None] = {}

    def state(self) -> list[Tensor]:
        return [velocity for velocity in self.velocities.values() if velocity is not None]

    def update(self, parameters: list[Tensor], gradients: list[Tensor], which: list[int]) -> None:
        for i, gradient in zip(which, gradients, strict=True):
            if i not in self.velocities:  # zero has the effect of torch's special first step
                self.velocities[i] = torch.zeros_like(gradient) if self.settings["momentum"] else None
        rows = map(_in_a_row, parameters, gradients, [self.velocities[i] for i in which])
        values, slopes, velocities = ([*column] for column in zip(*rows, strict=True))
        sgd(values, slopes, velocities, **self.settings)


class Adam(Optimizer):
    """Adam as in torch.optim.Adam; it updates `moments`, one dict per parameter, in place, to continue from later."""

    def __init__(
        self, parameters: Sequence[Tensor], *, lr: float, weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, moments: list[dict[str, Tensor]] | None = None,
    ):  # fmt: skip
        super().__init__(parameters)
        self.settings: dict[str, Any] = {
            "lr": lr,
            "weight_decay": weight_decay,
            "eps": eps,
            "beta1": betas[0],
            "beta2": betas[1],
        }
        self.settings |= {"amsgrad": False, "maximize": False, "fused": True}
        self.moments = moments or [fresh_moments(parameter) for parameter in parameters]

    def state(self) -> list[Tensor]:
        return [tensor for moments in self.moments for tensor in moments.values()]

    def update(self, parameters: list[Tensor], gradients: list[Tensor], which: list[int]) -> None:
        first, second, steps = ([self.moments[i][name] for i in which] for name in ("exp_avg", "exp_avg_sq", "step"))
        rows = map(_in_a_row, parameters, gradients, first, second)
        values, slopes, first, second = ([*column] for column in zip(*rows, strict=True))
        adam(values, slopes, first, second, [], steps, **self.settings)


def _in_a_row(parameter: Tensor, *others: Tensor | None) -> list[Any]:
    """A parameter, its gradient and what the optimiser remembers of it, as they lie in memory.

    torch's kernels for CPUs copy kernels of convolutions that are stored channels-last: 2.5 times the time of a step.
    """
    together = [parameter, *others]
    if parameter.dim() != 4 or parameter.device.type != "cpu":
        return together
    if any(one is not None and not one.is_contiguous(memory_format=torch.channels_last) for one in together):
        return together
    return [None if one is None else one.permute(0, 2, 3, 1).view(-1) for one in together]


def fresh_moments(parameter: Tensor) -> dict[str, Tensor]:
    """The moments of Adam for a parameter before the first step."""
    zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
    return zeros | {"step": torch.zeros((), device=parameter.device)}
