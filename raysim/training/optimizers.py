"""SGD and Adam by torch's fused kernels, called as torch.optim's own classes call them.

An instance of those classes imports torch's compiler: 70 MB and more than a second in every actor, for nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam


class Optimizer(ABC):
    """An optimiser that steps tensors by their `grad`; tensors without a gradient are left as they are."""

    def __init__(self, parameters: Sequence[Tensor]):
        self.parameters = parameters
        # Parameter -> it and what is remembered of it, and the same as it lies in memory, if that is another way.
        self.known: dict[int, tuple[list[Tensor], list[Tensor] | None]] = {}

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters that have a gradient."""
        rows = [self._row(i, p, p.grad) for i, p in enumerate(self.parameters) if p.grad is not None]
        if rows:
            self.update(*([*column] for column in zip(*rows, strict=True)))

    @abstractmethod
    def remembered(self, i: int, gradient: Tensor) -> list[Tensor]:
        """Return what the optimiser keeps of a parameter's steps and updates with it."""

    @abstractmethod
    def update(self, parameters: list[Tensor], gradients: list[Tensor], *remembered: list[Tensor]) -> None:
        """Update these parameters by their gradients."""

    def _row(self, i: int, parameter: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        """Return a parameter, its gradient and what is kept of its steps, in the order of memory.

        torch's kernels for CPUs copy what is stored channels-last, such as convolutions: 2.5 times the time of a step.
        """
        if i not in self.known:
            together = [parameter, *self.remembered(i, gradient)]
            fits = parameter.dim() == 4 and parameter.device.type == "cpu" and all(map(_channels_last, together))
            self.known[i] = together, [_flat(one) for one in together] if fits else None
        together, flat = self.known[i]
        if flat is not None and _channels_last(gradient):
            return flat[0], _flat(gradient), *flat[1:]
        return together[0], gradient, *together[1:]


def _channels_last(tensor: Tensor) -> bool:
    return tensor.dim() != 4 or tensor.is_contiguous(memory_format=torch.channels_last)


def _flat(tensor: Tensor) -> Tensor:
    """Return all values of a channels-last tensor in a row; others, such as a count of steps, as they are."""
    return tensor if tensor.dim() != 4 else tensor.permute(0, 2, 3, 1).view(-1)


class Sgd(Optimizer):
    """SGD as in torch.optim.SGD, without dampening."""

    def __init__(self, parameters: Sequence[Tensor], *, lr: float, momentum: float = 0.0, weight_decay: float = 0.0):
        super().__init__(parameters)
        self.settings: dict[str, Any] = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        self.settings |= {"dampening": 0.0, "nesterov": False, "maximize": False, "is_first_step": False}
        self.velocities: dict[int, Tensor] = {}

    def remembered(self, i: int, gradient: Tensor) -> list[Tensor]:
        if not self.settings["momentum"]:
            return []
        if i not in self.velocities:  # zero has the effect of torch's special first step
            self.velocities[i] = torch.zeros_like(gradient)
        return [self.velocities[i]]

    def update(self, parameters: list[Tensor], gradients: list[Tensor], *remembered: list[Tensor]) -> None:
        # Without torch.optim.sgd.sgd around it, whose look at the tensors' devices takes 1 % of a step of hfmds-cnn.
        torch._fused_sgd_(parameters, gradients, remembered[0] if remembered else [], **self.settings)


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

    def remembered(self, i: int, gradient: Tensor) -> list[Tensor]:
        return [self.moments[i][name] for name in ("exp_avg", "exp_avg_sq", "step")]

    def update(self, parameters: list[Tensor], gradients: list[Tensor], *remembered: list[Tensor]) -> None:
        first, second, steps = remembered
        adam(parameters, gradients, first, second, [], steps, **self.settings)


def fresh_moments(parameter: Tensor) -> dict[str, Tensor]:
    """Return the moments of Adam for a parameter before its first step."""
    zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
    return zeros | {"step": torch.zeros((), device=parameter.device)}
