"""The networks: classifiers by name here; each is `forward(x) = head(features(x))`, `head` its last linear layer.

Importing this package does not import torch: the driver checks names and image sizes without it.
"""

from dataclasses import dataclass
from importlib import import_module

from raysim.errors import InputError
from raysim.rng import stream
from raysim.settings import nearest


@dataclass(frozen=True)
class _Entry:
    module: str  # in this package; the function named like the model (with _ for -) makes it
    smallest: int  # image side in pixels
    description: str
    decodes: bool = False  # whether it is also a variational auto-encoder (models/vae.py)


_ENTRIES = {
    "hfmds-cnn": _Entry("cnn", 16, "two 5×5 convolutions (32, 64) with max-pool, linear 512; HFMDS-FL, SDA-FL"),
    "fedpa-cnn": _Entry("cnn", 1, "two 3×3 stride-2 convolutions (6, 16) with batch-norm, linear 32; FedPA"),
    "fedpa-celeba-cnn": _Entry("cnn", 8, "3×3 convolutions (16, 32, 64) with max-pool, linear 32; FedPA on CelebA"),
    "small-cnn": _Entry("cnn", 16, "two 5×5 convolutions (6, 16) with max-pool, linear 32; fast"),
    "mlp": _Entry("cnn", 1, "one hidden layer of 64; for tests"),
    "resnet18": _Entry("resnet", 8, "ResNet-18 with batch-norm; 3×3 stem up to 64 pixels"),
    "resnet18-gn": _Entry("resnet", 8, "ResNet-18 with group-norm (32 groups); 3×3 stem up to 64 pixels"),
    "feddpms-vae": _Entry("vae", 4, "VAE of three 3×3 convolutions (32, 32, 64), latent 32; FedDPMS", True),
    "feddpms-cifar-vae": _Entry("vae", 4, "VAE of four 3×3 convolutions (32, 32, 64, 64), latent 128; FedDPMS", True),
}


def names() -> list[tuple[str, str]]:
    """Every classifier with a line about it."""
    return [(name, entry.description) for name, entry in _ENTRIES.items()]


def with_decoder() -> list[str]:
    """Those that can also decode a feature to an image."""
    return [name for name, entry in _ENTRIES.items() if entry.decodes]


def check(name: str, shape: tuple[int, int, int], classes: int) -> None:
    """InputError unless this classifier exists and takes images of this shape (channels, height, width)."""
    if name not in _ENTRIES:
        hint = nearest(name, _ENTRIES, f"; choose one of {', '.join(_ENTRIES)}")
        raise InputError(f"--model: unknown model '{name}'{hint}")
    if len(shape) != 3 or min(shape) < 1:
        raise InputError(f"model: image shape {tuple(shape)}; give (channels, height, width)")
    if classes < 2:
        raise InputError(f"model: {classes} classes; a classifier needs at least 2")
    smallest = _ENTRIES[name].smallest
    if min(shape[1:]) < smallest:
        fits = ", ".join(other for other, entry in _ENTRIES.items() if entry.smallest <= min(shape[1:]))
        raise InputError(
            f"--model {name} needs images of at least {smallest}×{smallest}, not {shape[1]}×{shape[2]}; use {fits}"
        )


def build(name: str, shape: tuple[int, int, int], classes: int, seed: int):
    """A `Classifier` on the CPU, freshly initialised; the same seed gives the same weights, torch's RNG stays."""
    import torch

    check(name, shape, classes)
    make = getattr(import_module(f"raysim.models.{_ENTRIES[name].module}"), name.replace("-", "_"))
    init = int(stream(seed, "model-init").integers(2**63))
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(init)  # not torch.manual_seed, which would also reseed the GPUs
        return make(shape, classes)
