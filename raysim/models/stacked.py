"""A network for several clients at once, made of stacked layers in which each client has weights of its own.

An activation is [batch, clients·channels, …]: client i has the i-th group of channels, so that layers without weights
(ReLU, pooling, flatten) need no change. Weights are [clients, …]. On CPUs the batch comes last in memory, so that a
convolution is a copy of long runs and a batched matrix product, which is faster there than grouped convolutions; on
accelerators memory is in the usual order, and a convolution is one grouped convolution for all clients.
"""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysim.errors import InputError
from raysim.models.convolution import DeepConv2d, ImageConv2d
from raysim.models.patch_convolution import convolve, convolve_and_pool

PATCH_BYTES = 2**20  # of one client's patches; larger ones exceed the cache, and it is convolved directly


class StackedLayer(nn.Module):
    """A layer for all clients; its `weight` and `bias` are views of the clients' flat weights, set from outside."""

    weight: Tensor
    bias: Tensor | None = None

    def __init__(self, layer: nn.Module, grouped: bool):
        super().__init__()
        # In a tuple, so that it does not become a submodule: only its settings are used.
        self.layer: tuple[Any] = (layer,)
        self.grouped = grouped


class StackedLinear(StackedLayer):
    """A linear layer with separate weights for each client."""

    def forward(self, x: Tensor) -> Tensor:
        return self.by_client(x.unflatten(1, (len(self.weight), -1)).transpose(0, 1)).transpose(0, 1).flatten(1)

    def by_client(self, x: Tensor) -> Tensor:
        """Apply the layer to inputs [clients, batch, …]."""
        return x @ self.weight.mT if self.bias is None else torch.baddbmm(self.bias[:, None], x, self.weight.mT)


class StackedConv2d(StackedLayer):
    """A convolution, without groups or dilation, with separate weights for each client."""

    def forward(self, x: Tensor) -> Tensor:
        (layer,) = self.layer
        clients, _, channels, height, width = self.weight.shape
        if self.grouped:
            bias = None if self.bias is None else self.bias.flatten()
            return F.conv2d(x, self.weight.flatten(0, 1), bias, layer.stride, layer.padding, groups=clients)
        (up, right), (down, across) = layer.padding, layer.stride
        x = F.pad(x, (right, right, up, up)) if up or right else x
        rows, columns = (x.shape[2] - height) // down + 1, (x.shape[3] - width) // across + 1
        if 4 * channels * height * width * rows * columns * len(x) > PATCH_BYTES:
            return self.directly(x)
        x = x.permute(1, 2, 3, 0).unflatten(0, (clients, channels))
        outputs = self.by_client(x, self.weight.permute(0, 1, 3, 4, 2))  # channels-last, as they are stored
        outputs = outputs if self.bias is None else outputs + self.bias[:, :, None, None, None]
        return outputs.flatten(0, 1).permute(3, 0, 1, 2)

    def directly(self, x: Tensor) -> Tensor:
        """Apply the layer by torch's convolution, one client after the other."""
        (layer,) = self.layer
        biases = [None] * len(self.weight) if self.bias is None else self.bias
        each = zip(x.chunk(len(self.weight), 1), self.weight, biases, strict=True)
        last = torch.channels_last
        outputs = [F.conv2d(z.contiguous(memory_format=last), w, b, layer.stride) for z, w, b in each]
        return torch.cat(outputs, 1)

    def by_client(self, x: Tensor, kernels: Tensor) -> Tensor:
        """Apply the layer without its bias, to inputs in the form that `convolve` takes."""
        (layer,) = self.layer
        return convolve(x.contiguous(), kernels, layer.stride)


class StackedPooledConv2d(StackedConv2d):
    """A convolution of images and the 2×2 max-pooling behind it, on CPUs, with separate weights for each client."""

    def directly(self, x: Tensor) -> Tensor:
        return F.max_pool2d(super().directly(x), 2)

    def by_client(self, x: Tensor, kernels: Tensor) -> Tensor:
        return convolve_and_pool(x, kernels)


class StackedBatchNorm2d(StackedLayer):
    """A batch-norm over each client's own samples; `share` [clients, batch] has their weights, 0 for padding."""

    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    share: Tensor

    def forward(self, x: Tensor) -> Tensor:
        (layer,) = self.layer
        pixels = x.shape[2] * x.shape[3]
        counts = pixels * (self.share > 0).sum(1, keepdim=True)
        if pixels == 1 and bool((counts == 1).any()):
            raise ValueError("batch-norm needs more than one value per channel; a client's batch has one")
        x = x.unflatten(1, self.weight.shape)
        share = (self.share.T / pixels)[:, :, None, None, None]
        mean = (x * share).sum((0, 3, 4), keepdim=True)
        x = x - mean
        variance = (x.square() * share).sum((0, 3, 4), keepdim=True)
        with torch.no_grad():
            self.running_mean.lerp_(mean.view_as(self.running_mean), layer.momentum)
            self.running_var.lerp_(variance.view_as(self.running_var) * counts / (counts - 1), layer.momentum)
        scale = (variance + layer.eps).rsqrt() * self.weight[:, :, None, None]
        return (x * scale + self.bias[:, :, None, None]).flatten(1, 2)


class StackedGroupNorm(StackedLayer):
    """A group-norm in which the groups of all clients stand side by side."""

    bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        (layer,) = self.layer
        groups = len(self.weight) * layer.num_groups
        return F.group_norm(x, groups, self.weight.flatten(), self.bias.flatten(), layer.eps)


class StackedMaxPool2d(StackedLayer):
    """torch's max-pooling, on CPUs with batch and channels exchanged: channels-last memory is the fastest there."""

    def forward(self, x: Tensor) -> Tensor:
        (layer,) = self.layer
        return layer(x) if self.grouped else layer(x.transpose(0, 1)).transpose(0, 1)


# Layer of torch -> its stacked layer, and whether the settings of an instance are supported.
_KINDS: dict[type[nn.Module], tuple[type[StackedLayer], Callable[[Any], bool]]] = {
    nn.Linear: (StackedLinear, lambda layer: True),
    nn.Conv2d: (
        StackedConv2d,
        lambda c: (c.groups, c.dilation, c.padding_mode) == (1, (1, 1), "zeros") and not isinstance(c.padding, str),
    ),
    DeepConv2d: (StackedConv2d, lambda c: True),
    ImageConv2d: (StackedConv2d, lambda c: True),
    nn.BatchNorm2d: (StackedBatchNorm2d, lambda b: b.affine and b.track_running_stats and b.momentum is not None),
    nn.GroupNorm: (StackedGroupNorm, lambda g: g.affine),
    nn.MaxPool2d: (StackedMaxPool2d, lambda m: not m.return_indices),
}


def stacked(module: nn.Module, name: str, grouped: bool = False) -> nn.Module:
    """Return a copy of the module with stacked layers, which have no weights yet.

    `name` is the model's name for error messages; `grouped` asks for the form for accelerators.
    """
    module = copy.deepcopy(module)
    if not grouped:
        _join_pools(module)
    for path, layer in list(module.named_modules()):
        kind, supports = _KINDS.get(type(layer), (StackedLayer, lambda layer: False))
        if supports(layer):
            owner, _, leaf = path.rpartition(".")
            setattr(module.get_submodule(owner), leaf, kind(layer, grouped))
        elif layer._parameters or layer._buffers:
            raise InputError(f"--fuse: --model {name} has the layer {layer}, made for one client only; use --fuse 1")
    return module


def _join_pools(module: nn.Module) -> None:
    """Join every convolution of images with the pooling behind it into one layer, where both are of that kind."""
    for layers in [every for every in module.modules() if type(every) is nn.Sequential]:
        for i, (convolution, pool) in enumerate(itertools.pairwise(layers)):
            if _of_images(convolution) and _by_two(pool):
                layers[i], layers[i + 1] = StackedPooledConv2d(convolution, grouped=False), nn.Identity()


def _of_images(layer: Any) -> bool:
    """Whether the layer is a convolution of so few channels that computing it by 2×2 blocks is faster."""
    if type(layer) not in (nn.Conv2d, ImageConv2d) or not _KINDS[type(layer)][1](layer):
        return False
    return layer.in_channels <= 4 and layer.stride == (1, 1) and all(size % 2 for size in layer.kernel_size)


def _by_two(layer: Any) -> bool:
    """Whether the layer pools blocks of 2×2."""
    if type(layer) is not nn.MaxPool2d or layer.return_indices or layer.ceil_mode:
        return False
    by_two = all(value in (2, (2, 2)) for value in (layer.kernel_size, layer.stride))
    return by_two and layer.padding in (0, (0, 0)) and layer.dilation in (1, (1, 1))
