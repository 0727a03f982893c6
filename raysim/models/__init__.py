"""The networks: classifiers that compute `forward(x) = head(features(x))` with a last linear layer `head`.

Classifiers have names and are declared in `classifiers`, or are the user's own (`own`). Importing this package does not
import torch: the driver checks names and image sizes without it, unless the model is the user's own, which it tries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raysim.definitions import is_own, source_of
from raysim.errors import InputError
from raysim.models.classifiers import Shape, all_models
from raysim.rng import stream
from raysim.settings import nearest

if TYPE_CHECKING:
    from torch import nn

    from raysim.models.classifier import Classifier
    from raysim.models.vae import VaeClassifier

LIBRARIES = ("torchvision", "timm")  # whose models go by LIBRARY:NAME


def names() -> list[tuple[str, str]]:
    """Return every classifier by name, with a line about it."""
    return [(name, model.description) for name, model in all_models().items()]


def with_decoder() -> list[str]:
    """Return the names of the classifiers that can also decode a feature to an image."""
    return [name for name, model in all_models().items() if model.decodes]


def with_maps() -> list[str]:
    """Return the names of the classifiers that have `maps` of their own."""
    return [name for name, model in all_models().items() if model.has_maps]


def check(name: str, shape: Shape, classes: int) -> None:
    """Raise an InputError unless this classifier exists and accepts images of this shape (channels, height, width)."""
    known = all_models()
    if name not in known and not is_own(name):
        hint = nearest(name, known, f"; choose one of {', '.join(known)}")
        raise InputError(f"--model: unknown model '{name}'{hint}, or an own one as MODULE:NAME")
    if len(shape) != 3 or min(shape) < 1:
        raise InputError(f"model: image shape {tuple(shape)}; give (channels, height, width)")
    if classes < 2:
        raise InputError(f"model: {classes} classes; a classifier needs at least 2")
    if is_own(name):
        from raysim.models import own

        return own.check(name, shape, classes, lambda: build(name, shape, classes, seed=0))
    smallest = known[name].smallest
    if min(shape[1:]) < smallest:
        fits = ", ".join(other for other, model in known.items() if model.smallest <= min(shape[1:]))
        raise InputError(
            f"--model {name} needs images of at least {smallest}×{smallest}, not {shape[1]}×{shape[2]}; use {fits}"
        )


def build(name: str, shape: Shape, classes: int, seed: int) -> Classifier | VaeClassifier:
    """Return a classifier on the CPU whose new weights depend on the seed only; torch's generator is left as it was."""
    if not is_own(name):
        check(name, shape, classes)
        return _seeded(seed, lambda: all_models()[name].make(shape, classes))
    from raysim.models import own

    make = own.maker(name, shape, classes)
    return _seeded(seed, lambda: own.adapted(make(), name, shape, classes))


def build_plain(name: str, shape: Shape, classes: int, seed: int) -> nn.Module:
    """Return the classifier for use outside a run: an own model is the user's network, without our adaptation."""
    if not is_own(name):
        return build(name, shape, classes, seed)
    from raysim.models import own

    return _seeded(seed, own.maker(name, shape, classes))


def _seeded(seed: int, make: Callable[[], Any]) -> Any:
    import torch

    init = int(stream(seed, "model-init").integers(2**63))
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(init)  # not torch.manual_seed, which would also reseed the GPUs
        return make()


def source(name: str) -> str | None:
    """Return a digest of an own model's source, or None for a model of raysim, torchvision or timm."""
    return source_of(name, "model") if is_own(name) and name.partition(":")[0] not in LIBRARIES else None


def draws(name: str) -> bool:
    """Whether the model may draw from torch's generator in training, as dropout does; raysim's own models do not."""
    return is_own(name)
