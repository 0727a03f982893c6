"""One network for several clients at once, each with its own weights, made of stacked layers.

An activation is [batch, clients·channels, …]: client i has the i-th group of channels, so that layers without weights
(ReLU, pooling, flatten) need no change. Weights are [clients, …]. On CPUs the batch comes last in memory, so that a
convolution is one copy of long runs and one batched matrix product, which is faster there than grouped convolutions; on
accelerators memory is in the usual order, and a convolution is one grouped convolution for all clients.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysim.errors import InputError
from raysim.models.convolution import DeepConv2d, ImageConv2d

PATCH_BYTES = 2**20  # of one client's unfolded input; a larger one exceeds the cache and is convolved directly


class StackedLayer(nn.Module):
    """A layer for all clients, whose `weight` and `bias` (views of the clients' flat weights) are set from outside."""

    weight: Tensor
    bias: Tensor | None = None

    def __init__(self, layer: nn.Module, grouped: bool):
        super().__init__()
        # In a tuple, so that it does not become a submodule: only its settings are used.
        self.layer: tuple[Any] = (layer,)
        self.grouped = grouped

    def product(self, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
        """The batched matrix product a·b plus the bias, if there is one."""
        return a @ b if bias is None else torch.baddbmm(bias, a, b)


class StackedLinear(StackedLayer):
    """A stacked linear layer."""

    def forward(self, x: Tensor) -> Tensor:
        return self.by_client(x.unflatten(1, (len(self.weight), -1)).transpose(0, 1)).transpose(0, 1).flatten(1)

    def by_client(self, x: Tensor) -> Tensor:
        """The layer for inputs and outputs of the form [clients, batch, …]."""
        return self.product(x, self.weight.mT, None if self.bias is None else self.bias[:, None])


class Patches(torch.autograd.Function):
    """The inputs under a kernel at each of its positions.

    [clients, channels, height, width, batch] -> [clients, *size, channels, rows, columns, batch].

    The gradient adds whole planes; that of `unfold` would take twice as long as all else in a convolution.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: tuple[int, int], stride: tuple[int, int]) -> Tensor:
        ctx.shape, ctx.stride = x.shape, stride
        seen = x.unfold(2, size[0], stride[0]).unfold(3, size[1], stride[1])
        return seen.permute(0, 5, 6, 1, 2, 3, 4).contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        total = gradient.new_zeros(ctx.shape)
        (down, across), (rows, columns) = ctx.stride, gradient.shape[4:6]
        for i in range(gradient.shape[1]):
            for j in range(gradient.shape[2]):
                seen = total[:, :, i : i + down * rows : down, j : j + across * columns : across]
                seen += gradient[:, i, j]
        return total, None, None


class StackedConv2d(StackedLayer):
    """A stacked convolution, without groups or dilation."""

    def forward(self, x: Tensor) -> Tensor:
        (layer,) = self.layer
        clients, out, channels, height, width = self.weight.shape
        if self.grouped:
            bias = None if self.bias is None else self.bias.flatten()
            return F.conv2d(x, self.weight.flatten(0, 1), bias, layer.stride, layer.padding, groups=clients)
        (up, right), (down, across) = layer.padding, layer.stride
        x = F.pad(x, (right, right, up, up)) if up or right else x
        rows, columns = (x.shape[2] - height) // down + 1, (x.shape[3] - width) // across + 1
        if 4 * channels * height * width * rows * columns * len(x) > PATCH_BYTES:
            biases = [None] * clients if self.bias is None else self.bias
            each = zip(x.chunk(clients, 1), self.weight, biases, strict=True)
            last = torch.channels_last
            outputs = [F.conv2d(z.contiguous(memory_format=last), w, b, layer.stride) for z, w, b in each]
            return torch.cat(outputs, 1)
        x = x.permute(1, 2, 3, 0).contiguous().unflatten(0, (clients, channels))
        patches = Patches.apply(x, (height, width), layer.stride).flatten(4).flatten(1, 3)
        kernels = self.weight.permute(0, 1, 3, 4, 2).flatten(2)  # channels-last, as they are stored
        bias = None if self.bias is None else self.bias[:, :, None]
        return self.product(kernels, patches, bias).view(clients * out, rows, columns, -1).permute(3, 0, 1, 2)


class StackedBatchNorm2d(StackedLayer):
    """A stacked batch-norm over each client's own samples; `share` [clients, batch]: their weights, 0 for padding."""

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
    """A stacked group-norm, with the groups of all clients side by side."""

    bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        (layer,) = self.layer
        groups = len(self.weight) * layer.num_groups
        return F.group_norm(x, groups, self.weight.flatten(), self.bias.flatten(), layer.eps)


class StackedMaxPool2d(StackedLayer):
    """torch's max-pooling; on CPUs with batch and channels exchanged: channels-last memory is the fastest there."""

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
    """A copy of the module with stacked layers, without weights yet; `name` is the model's, for error messages.

    `grouped`: in the form for accelerators.
    """
    module = copy.deepcopy(module)
    for path, layer in list(module.named_modules()):
        kind, supports = _KINDS.get(type(layer), (StackedLayer, lambda layer: False))
        if supports(layer):
            owner, _, leaf = path.rpartition(".")
            setattr(module.get_submodule(owner), leaf, kind(layer, grouped))
        elif layer._parameters or layer._buffers:
            raise InputError(f"--fuse: --model {name} has the layer {layer}, made for one client only; use --fuse 1")
    return module
