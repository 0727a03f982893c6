"""Models that the user wrote (any nn.Module class or function of (shape, classes)), and those of torchvision and timm.

A classifier needs `features(x)` and a linear `head`, with forward(x) = head(features(x)). A model that has them is
taken as it is. Of any other the last linear layer is found by watching a forward pass, and split off.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from raysim import definitions
from raysim.data.torchvision_import import import_torchvision
from raysim.errors import InputError
from raysim.models.classifiers import Shape
from raysim.settings import nearest

INTERFACE = "give it `features(x)` and a linear layer `head`, with forward(x) = head(features(x))"
PROBES = 2  # images: batch-norm needs more than one
TOLERANCE = 1e-4  # relative, between two ways to compute the same logits


class Split(nn.Module):
    """A network divided into its last linear layer, the `head`, and the rest, which computes the features."""

    def __init__(self, net: nn.Module, path: str):
        super().__init__()
        head = net.get_submodule(path)
        owner, _, leaf = path.rpartition(".")
        setattr(net.get_submodule(owner), leaf, nn.Identity())
        self.path, self.feature_size = path, head.in_features
        self.net, self.head = net, head

    def features(self, x: Tensor) -> Tensor:
        return self.net(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.net(x))

    def own_name(self, name: str) -> str:
        """Return the name that a parameter or buffer has in the user's network, under which it is saved."""
        first, _, rest = name.partition(".")
        return rest if first == "net" else f"{self.path}.{rest}"


def maker(name: str, shape: Shape, classes: int) -> Callable[[], nn.Module]:
    """Return a function that makes the user's network, unchanged and with new weights.

    The user's module is imported here, before the first network is made: an import may draw from torch's generator, and
    would change the weights of the first network that a process makes.
    """
    library, _, which = name.partition(":")
    if library == "torchvision":
        import_torchvision()
        return lambda: _torchvision(which, shape, classes)
    if library == "timm":
        _import_timm(which)
        return lambda: _timm(which, shape, classes)
    definition = definitions.find(name, "model")
    return lambda: _own(definition, name, shape, classes)


def _own(definition: Any, name: str, shape: Shape, classes: int) -> nn.Module:
    if isinstance(definition, nn.Module) or not callable(definition):
        kind = type(definition).__name__
        raise InputError(f"--model {name}: {kind} is no class; give an nn.Module class or function of (shape, classes)")
    net = _guarded(name, f"of {tuple(shape)} and {classes} classes", definition, shape, classes)
    if not isinstance(net, nn.Module):
        raise InputError(f"--model {name}: it gives {type(net).__name__}, not an nn.Module; return the network")
    return net


def adapted(net: Any, name: str, shape: Shape, classes: int) -> nn.Module:
    """Return the network as a classifier with `features`, `head` and `feature_size`, or raise an InputError."""
    net.eval()
    x = torch.randn(PROBES, *shape)
    with torch.no_grad():
        called: list[tuple[str, Tensor, Tensor]] = []  # path, input and output of each linear layer, in order
        hooks = [
            layer.register_forward_hook(lambda _, given, out, path=path: called.append((path, given[0], out)))
            for path, layer in net.named_modules()
            if isinstance(layer, nn.Linear)
        ]
        logits = _logits(net, name, x, classes)
        for hook in hooks:
            hook.remove()
        for parameter, tensor in net.named_parameters():
            if not tensor.requires_grad:
                raise InputError(f"--model {name}: parameter {parameter} is frozen (requires_grad); all are trained")
        if (size := _interface(net, x, logits)) is not None:
            net.feature_size = size
            return net
        path = _last_linear(net, name, called, logits)
        split = Split(net, path)
        if not torch.equal(split(x), logits):
            raise InputError(f"--model {name}: without its last layer {path} it computes something else; {INTERFACE}")
        return split


def check(name: str, shape: Shape, classes: int, build: Callable[[], nn.Module]) -> None:
    """Build the model and try it; raise an InputError of one line if it cannot be trained."""
    first, second = build(), build()
    pairs = zip(first.state_dict().items(), second.state_dict().values(), strict=True)
    if differing := next((key for (key, one), other in pairs if not torch.equal(one, other)), None):
        raise InputError(
            f"--model {name}: built twice from one seed, {differing} differs; draw weights from torch's generator only"
        )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        _logits(copy.deepcopy(first).train(), name, torch.randn(PROBES, *shape), classes)


# -- inside ------------------------------------------------------------------------------------------------------------


def _guarded(name: str, doing: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the user's code, and turn whatever it raises into an InputError of one line."""
    try:
        return function(*arguments)
    except Exception as error:
        raise InputError(f"--model {name} {doing}: {definitions.described(error)}") from error


def _logits(net: nn.Module, name: str, x: Tensor, classes: int) -> Tensor:
    """Return the network's output, or raise an InputError unless it is a row of logits per image."""
    given = "×".join(map(str, x.shape[1:]))
    logits = _guarded(name, f"on {len(x)} images of {given}", net, x)
    mode = " in training mode" if net.training else ""
    if not isinstance(logits, Tensor):
        raise InputError(f"--model {name} returns {type(logits).__name__}{mode}; return the logits alone")
    if tuple(logits.shape) != (len(x), classes):
        expected = (len(x), classes)
        raise InputError(f"--model {name} returns {tuple(logits.shape)}{mode} for {len(x)} images; needed: {expected}")
    return logits


def _interface(net: Any, x: Tensor, logits: Tensor) -> int | None:
    """Return the length of a feature if the network's own `features` and `head` compute its logits, else None."""
    if not (callable(getattr(net, "features", None)) and isinstance(getattr(net, "head", None), nn.Linear)):
        return None
    features = net.features(x)
    if not isinstance(features, Tensor) or features.ndim != 2 or features.shape[1] != net.head.in_features:
        return None
    return features.shape[1] if torch.allclose(net.head(features), logits, TOLERANCE, TOLERANCE) else None


def _last_linear(net: nn.Module, name: str, called: list[tuple[str, Tensor, Tensor]], logits: Tensor) -> str:
    """Return the path of the linear layer whose output the network returns."""
    path, given, out = called[-1] if called else ("", logits, None)
    if out is not logits:
        raise InputError(f"--model {name} does not end in a linear layer (nn.Linear); {INTERFACE}")
    if not path or given.ndim != 2 or [each[0] for each in called].count(path) > 1:
        last = path or type(net).__name__
        raise InputError(f"--model {name}: its last layer {last} cannot be split off; {INTERFACE}")
    return path


def _torchvision(which: str, shape: Shape, classes: int) -> nn.Module:
    models = import_torchvision().models
    known = models.list_models(module=models)
    if which not in known:
        raise InputError(f"--model: torchvision has no classifier '{which}'{nearest(which, known)}")
    net = _guarded(f"torchvision:{which}", "", lambda: models.get_model(which, weights=None, num_classes=classes))
    if shape[0] == 1:
        _take_grey(net)
    return net


def _take_grey(net: nn.Module) -> None:
    """Make the first convolution take grey images, as if each were given in three equal colours."""
    first = next((layer for layer in net.modules() if isinstance(layer, nn.Conv2d)), None)
    if first is not None and first.in_channels == 3 and first.groups == 1:
        first.in_channels = 1
        first.weight = nn.Parameter(first.weight.detach().sum(1, keepdim=True))


def _timm(which: str, shape: Shape, classes: int) -> nn.Module:
    timm = _import_timm(which)
    if which not in timm.list_models():
        raise InputError(f"--model: timm has no model '{which}'{nearest(which, timm.list_models())}")
    options = {"pretrained": False, "num_classes": classes, "in_chans": shape[0]}
    return _guarded(f"timm:{which}", "", lambda: timm.create_model(which, **options))


def _import_timm(which: str) -> Any:
    import_torchvision()  # which timm imports, and which does not load by itself beside every build of torch
    try:
        return importlib.import_module("timm")
    except ImportError as error:
        raise InputError(f"--model timm:{which} needs the package timm ({error}): pip install timm") from None
