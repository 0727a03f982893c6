"""Private gradients: clipped sample by sample, summed, with noise added (Abadi et al., 2016).

Opacus is not used: its hooks collect per-sample gradients during one backward pass, and the gradient penalty of a
WGAN-GP needs a second pass through the first, which they do not see (meta-pytorch/opacus issue 31).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from raysim.models.flat import FlatModel

CHUNK = 64  # samples whose gradients are in memory at once; fixed, since it changes the last bits


@dataclass(frozen=True)
class Privacy:
    """The privacy of one training: Poisson sampling at `rate`, gradients clipped to `clip`, noise of σ·clip."""

    noise_multiplier: float  # σ
    rate: float
    steps: int
    clip: float

    @staticmethod
    @lru_cache(maxsize=1024)
    def calibrated(epsilon: float, delta: float, rate: float, steps: int, clip: float) -> "Privacy":
        """Return the private steps with the least noise that gives (ε, δ) over all of them together."""
        from raysim.privacy.accounting import dp_sgd_noise_multiplier

        return Privacy(dp_sgd_noise_multiplier(epsilon, rate, steps, delta), rate, steps, clip)

    def epsilon(self, delta: float) -> float:
        """Return the ε that the accountant certifies for all the steps."""
        from raysim.privacy.accounting import dp_sgd_epsilon

        return dp_sgd_epsilon(self.noise_multiplier, self.rate, self.steps, delta)


def sdafl_epsilon(noise_multiplier: float, rate: float, steps_per_round: int, delta: float) -> float:
    """Return the ε of SDA-FL's eq. 2: 2q√(n_d ln(1/δ))/σ.

    It is about one GAN round only, and needs clipping, which the paper lacks.

    >>> round(sdafl_epsilon(1.0, 0.01, 100, math.exp(-4)), 3)
    0.4
    """
    return 2 * rate * math.sqrt(steps_per_round * math.log(1 / delta)) / noise_multiplier


def private_gradient(
    model: FlatModel, loss: Callable[..., Tensor], inputs: tuple[Tensor, ...], privacy: Privacy, noise: Tensor
) -> None:
    """Write Σ_i g_i·min(1, C/‖g_i‖) + σ·C·noise to the model's gradients.

    g_i is the gradient of loss(parameters, *inputs_i), where inputs_i are those of sample i.
    """
    model.gradients.zero_()
    if len(inputs[0]):
        parameters = {name: parameter.detach() for name, parameter in model.module.named_parameters()}
        batched = torch.func.vmap(torch.func.grad(loss), in_dims=(None, *(0 for _ in inputs)))
        for chunk in zip(*(values.split(CHUNK) for values in inputs), strict=True):
            each = batched(parameters, *chunk)
            squares = sum(g.flatten(1).square().sum(1) for g in each.values())
            factor = (privacy.clip / squares.sqrt().clamp(min=1e-12)).clamp(max=1)
            for name, g in each.items():
                model.view(model.gradients, name).add_(torch.tensordot(factor, g, 1))
    scale = privacy.noise_multiplier * privacy.clip
    model.gradients.add_(noise, alpha=scale)
