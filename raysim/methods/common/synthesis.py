"""Synthetic images by optimising pixels until a frozen network sees in them what it saw in real ones (HFMDS-FL)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from raysim.methods.common.features import class_activation, hard_features, matching_loss
from raysim.settings import setting
from raysim.training.optimizers import Adam

TINY = 1e-30
Term = Callable[[Tensor, Tensor], Tensor]  # (images, their features in the matched layer) -> a value per image
Limits = tuple[Tensor, Tensor]  # the lowest and highest normalised value of a pixel, per channel


@dataclass(frozen=True)
class ImageSynthesis:
    """The settings of a synthesis, and the synthesis itself; what a method does with the images is its own matter."""

    mu: float = setting(
        0.5, "shift of the target features away from their prototype; 0: FMDS, below 0: easy (μ, eq. 10)"
    )
    steps: int = setting(40, "optimisation steps per synthesis (T_g; 500 in the paper)", minimum=0)
    lr: float = setting(0.06, "learning rate of Adam on the images; 0.02 in the paper", above=0)
    layer: Literal["auto", "maps", "features"] = setting(
        "auto",
        "what is matched: the flattened convolution maps, the input of the head as in the paper, or auto: maps if "
        "the model has them",
    )
    match: Literal["kl", "kl-reverse", "kl-sum", "mse", "relative", "none"] = setting(
        "relative", "loss between synthetic and real features: kl in the paper; relative: mse over the target's square"
    )
    match_weight: float | Literal["auto"] = setting(
        1.0, "factor on the matching loss, or auto: see --hfmds.match-share", minimum=0
    )
    match_share: float = setting(
        1.0, "with match-weight auto: the matching loss's gradient at the first step, over the cross-entropy's", above=0
    )
    temperature: float = setting(1.0, "temperature of the softmax in the matching loss, of kl and kl-reverse", above=0)
    cam: Literal["relu", "raw", "none"] = setting(
        "none",
        "mask on the features: none, the class activation's positive part (relu, the paper's), or all of it (raw)",
    )
    label_weight: float = setting(
        0.0, "factor on the cross-entropy of the images (L_C, eq. 12; 1 in the paper)", minimum=0
    )
    tv: float = setting(
        0.3, "factor on the total variation, the mean difference of neighbours; 0 in the paper", minimum=0
    )
    noise: float = setting(0.1, "standard deviation of the noise that images start from; 1 in the paper", minimum=0)
    clamp: bool = setting(True, "keep synthetic pixels in the range of real ones; not in the paper")
    levels: int = setting(
        3,
        "coarser images that are optimised along and added, each of half the last one's side; 0 in the paper",
        minimum=0,
        maximum=16,
    )
    coarse: int = setting(1, "optimise images of a side this many times smaller, and enlarge them", minimum=1)
    jitter: int = setting(0, "pixels by which images are shifted at random in every step, at most", minimum=0)
    tolerance: float = setting(
        0.0, "stop a synthesis once ten steps lower its loss, summed over --hfmds.group, by less than this share",
        minimum=0,
    )  # fmt: skip

    @property
    def matches(self) -> bool:
        """Whether features are matched at all."""
        return self.match != "none" and self.match_weight != 0

    def matches_maps(self, module: Any) -> bool:
        """Whether maps are matched, not features."""
        return self.layer == "maps" or (self.layer == "auto" and getattr(module, "has_maps", False))

    def layer_of(self, module: Any) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """Return the matched layer as a function of images, and the logits as a function of its output."""
        if self.matches_maps(module):
            return module.maps, lambda maps: module.head(module.features_of(maps))
        return module.features, module.head

    def start(self, stream: np.random.Generator, shape: torch.Size) -> Tensor:
        """Draw the noise that images of this shape [N, C, H, W] start from."""
        sides = [-(-side // self.coarse) for side in shape[2:]]
        drawn = stream.standard_normal((*shape[:2], *sides), dtype=np.float32)
        return self.noise * torch.from_numpy(drawn)

    def synthesise(
        self, module: Any, real: Tensor, labels: Tensor, prototypes: Tensor | None, start: Tensor,
        limits: Limits, shifts: np.random.Generator,
    ) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
        """Return the images after T_g steps of Adam on eq. 12, with recorded values of the synthesis for each image.

        The loss is a sum over the images, so each evolves by itself, though `tolerance` ends all at once. `prototypes`
        has a row per image; it is not needed where μ is 0. `shifts` is what the jitter is drawn from.
        """
        module.requires_grad_(False)
        layer, logits = self.layer_of(module)
        terms: dict[str, Term] = {
            "ce": lambda _, z: F.cross_entropy(logits(z), labels, reduction="none"),
            "tv": lambda images, _: total_variation(images),
        }
        if self.matches:
            terms |= self.matching_terms(layer(real), logits, labels, prototypes)
        start = start.to(real.device)
        weights, before = self.weigh(terms, layer, enlarged(start, real))

        def objective(pixels: Tensor) -> Tensor:
            images = enlarged(pixels, real)
            if self.jitter:
                images = images.roll(shifts.integers(-self.jitter, self.jitter + 1, 2).tolist(), (2, 3))
            z = layer(images)
            return torch.stack([(weight * terms[name](images, z)).sum() for name, weight in weights.items()]).sum()

        kept = limits if self.clamp else None
        made = optimise_images(start, objective, self.steps, self.lr, kept, self.tolerance, self.levels)
        images = enlarged(made, real)
        with torch.no_grad():
            z = layer(images)
            after = {f"{name}_end": terms[name](images, z) for name in ("ce", "matching", "cosine") if name in terms}
        module.requires_grad_(True)
        return images, before | after

    def matching_terms(
        self, real: Tensor, logits: Callable[[Tensor], Tensor], labels: Tensor, prototypes: Tensor | None
    ) -> dict[str, Term]:
        """Return the matching loss (eqs. 9 and 11) and the cosine to what is matched, given real images' features."""
        target = hard_features(real, prototypes, self.mu)
        mask: float | Tensor = 1.0
        if self.cam != "none":
            mask = class_activation(logits, target, labels)
            mask = mask.clamp(min=0) if self.cam == "relu" else mask
        wanted = target * mask
        return {
            "matching": lambda _, z: matching_loss(z * mask, wanted, self.match, self.temperature),
            "cosine": lambda _, z: F.cosine_similarity(z * mask, wanted),
        }

    def weigh(
        self, terms: dict[str, Term], layer: Callable[[Tensor], Tensor], images: Tensor
    ) -> tuple[dict[str, float | Tensor], dict[str, Tensor]]:
        """Return the factor on each term of the loss, without those that are 0, and the figures of the first images.

        `ratio` is how large the weighted matching loss's gradient is beside that of the cross-entropy. A weight that is
        found (auto) is each image's own, so that it does not depend on which images are made together.
        """
        weights: dict[str, float | Tensor] = {"ce": self.label_weight, "tv": self.tv}
        record = {}
        if self.matches:
            images = images.detach().clone(memory_format=torch.channels_last).requires_grad_()
            z = layer(images)
            matching, ce = terms["matching"](images, z), terms["ce"](images, z)
            matching_norm, ce_norm = (gradient_norms(loss, images) for loss in (matching, ce))
            auto = self.match_share * ce_norm / matching_norm.clamp(min=TINY)
            weights["matching"] = auto if self.match_weight == "auto" else self.match_weight
            record = {
                "matching_start": matching.detach(),
                "ratio": weights["matching"] * matching_norm / ce_norm.clamp(min=TINY),
            }
        return {name: weight for name, weight in weights.items() if isinstance(weight, Tensor) or weight}, record


def total_variation(images: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbouring pixels of each image, downwards plus across."""
    down, across = images.diff(dim=2), images.diff(dim=3)
    return down.abs().mean((1, 2, 3)) + across.abs().mean((1, 2, 3))


def gradient_norms(losses: Tensor, images: Tensor) -> Tensor:
    """Return the norm of each image's gradient, of losses that depend on one image each."""
    (gradient,) = torch.autograd.grad(losses.sum(), [images], retain_graph=True)
    return torch.linalg.vector_norm(gradient.flatten(1), dim=1)


def enlarged(images: Tensor, like: Tensor) -> Tensor:
    """Enlarge images [N, C, H, W] to the height and width of others, by linear interpolation.

    A product with a matrix for each direction: the gradient of torch's own is not deterministic on GPUs.
    """
    if images.shape[2:] == like.shape[2:]:
        return images
    down, across = interpolations(images, like)
    return down.T @ images @ across


def interpolations(coarse: Tensor, fine: Tensor) -> tuple[Tensor, Tensor]:
    """Return the matrices [coarse, fine] that enlarge images downwards and across."""
    down, across = zip(coarse.shape[2:], fine.shape[2:], strict=True)
    return _interpolation(*down, coarse.device), _interpolation(*across, coarse.device)


@cache
def _interpolation(given: int, wanted: int, device: torch.device) -> Tensor:
    return F.interpolate(torch.eye(given, device=device)[None], wanted, mode="linear", align_corners=False)[0]


def coarser(images: Tensor, levels: int) -> list[Tensor]:
    """Return zeros in the shapes of smaller images: of half the side of these, of a quarter, and so on."""
    sides = [[-(-side // 2**level) for side in images.shape[2:]] for level in range(1, levels + 1)]
    return [images.new_zeros((*images.shape[:2], *smaller)) for smaller in sides]


def optimise_images(
    start: Tensor, objective: Callable[[Tensor], Tensor], steps: int, lr: float,
    limits: Limits | None = None, tolerance: float = 0.0, levels: int = 0,
) -> Tensor:  # fmt: skip
    """Return the images after Adam on their pixels has lowered the objective.

    The objective is a sum over the images, and Adam is element-wise: each image evolves by itself. With `tolerance`,
    all stop once ten steps lower the objective by less than that share. An image is the sum of one in its own size and
    of `levels` coarser ones, enlarged. Adam moves every number by about `lr` a step, so what a pixel of a coarse image
    can show is there after few steps.
    """
    fine = start.clone(memory_format=torch.channels_last)
    others = coarser(start, levels)
    images, optimizer = fine, Adam([fine, *others], lr=lr)
    before = float("inf")
    for step in range(steps):
        images = images.detach().requires_grad_()
        loss = objective(images)
        if tolerance and step % 10 == 0:  # a transfer to the host, so only with a tolerance
            value = loss.item()
            if before - value < tolerance * before:
                break
            before = value
        (gradient,) = torch.autograd.grad(loss, [images])
        # The fused kernel goes through memory, in whatever order: both must have the same.
        fine.grad = gradient.contiguous(memory_format=torch.channels_last)
        for other in others:
            down, across = interpolations(other, fine)
            other.grad = down @ gradient @ across.T
        optimizer.step()
        images = sum((enlarged(other, fine) for other in others), fine)
        if limits is not None:
            inside = images.clamp(*limits)
            fine += inside - images
            images = inside
    return images.detach()
