"""One network for several clients at once, each with its own weights: ordinary layers with wider tensors.

An activation is [batch, clients·channels, …]: client i has the i-th group of channels, so that layers without weights
(ReLU, pooling, flatten) stay as they are. Weights are [clients, …]. In memory the batch comes last, which makes a
convolution one copy in long runs and one batched matrix product; on CPUs that is faster than grouped convolutions.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysim.errors import InputError

PATCH_BYTES = 2**20  # of one client's unfolded input; a larger one leaves the cache, and is convolved directly


class StackedLayer(nn.Module):
    """A layer whose `weight` and `bias` (views of the clients' flat weights) are set from outside."""

    weight: Tensor
    bias: Tensor | None = None

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = (layer,)  # in a tuple, so that it is no submodule: only its settings are wanted

    def product(self, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
        return a @ b if bias is None else torch.baddbmm(bias, a, b)


class StackedLinear(StackedLayer):
    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(1, (len(self.weight), -1)).transpose(0, 1)
        bias = None if self.bias is None else self.bias[:, None]
        return self.product(x, self.weight.mT, bias).transpose(0, 1).flatten(1)


class Patches(torch.autograd.Function):
    """What each position of a kernel sees: [clients, channels, height, width, batch] -> [clients, *size, channels, …].

    Its gradient adds whole planes; that of `unfold` alone takes twice as long as the rest of the convolution's.
    """

    @staticmethod
    def forward(ctx, x: Tensor, size: tuple[int, int], stride: tuple[int, int]) -> Tensor:
        ctx.shape, ctx.stride = x.shape, stride
        seen = x.unfold(2, size[0], stride[0]).unfold(3, size[1], stride[1])
        return seen.permute(0, 5, 6, 1, 2, 3, 4).contiguous()

    @staticmethod
    def backward(ctx, gradient: Tensor):
        total = gradient.new_zeros(ctx.shape)
        (down, across), (rows, columns) = ctx.stride, gradient.shape[4:6]
        for i in range(gradient.shape[1]):
            for j in range(gradient.shape[2]):
                seen = total[:, :, i : i + down * rows : down, j : j + across * columns : across]
                seen += gradient[:, i, j]
        return total, None, None


class StackedConv2d(StackedLayer):
    def forward(self, x: Tensor) -> Tensor:
        (layer,) = self.layer
        clients, out, channels, height, width = self.weight.shape
        (up, right), (down, across) = layer.padding, layer.stride
        x = F.pad(x, (right, right, up, up)) if up or right else x
        rows, columns = (x.shape[2] - height) // down + 1, (x.shape[3] - width) // across + 1
        if 4 * channels * height * width * rows * columns * len(x) > PATCH_BYTES:
            biases = [None] * clients if self.bias is None else self.bias
            each = zip(x.chunk(clients, 1), self.weight, biases, strict=True)
            last = torch.channels_last
            made = [F.conv2d(z.contiguous(memory_format=last), w, b, layer.stride) for z, w, b in each]
            return torch.cat(made, 1)
        x = x.permute(1, 2, 3, 0).contiguous().unflatten(0, (clients, channels))
        patches = Patches.apply(x, (height, width), layer.stride).flatten(4).flatten(1, 3)
        kernels = self.weight.permute(0, 1, 3, 4, 2).flatten(2)  # channels-last, as they lie
        bias = None if self.bias is None else self.bias[:, :, None]
        return self.product(kernels, patches, bias).view(clients * out, rows, columns, -1).permute(3, 0, 1, 2)


class StackedBatchNorm2d(StackedLayer):
    """By the statistics of each client's own samples: `share` [clients, batch] is what a sample counts, padding 0."""

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
    def forward(self, x: Tensor) -> Tensor:
        (layer,) = self.layer
        groups = len(self.weight) * layer.num_groups
        return F.group_norm(x, groups, self.weight.flatten(), self.bias.flatten(), layer.eps)


class StackedMaxPool2d(StackedLayer):
    """torch's own: with batch and channels exchanged the memory is channels-last, which it is fastest on."""

    def forward(self, x: Tensor) -> Tensor:
        (layer,) = self.layer
        return layer(x.transpose(0, 1)).transpose(0, 1)


_KINDS = {
    nn.Linear: (StackedLinear, lambda layer: True),
    nn.Conv2d: (
        StackedConv2d,
        lambda c: (c.groups, c.dilation, c.padding_mode) == (1, (1, 1), "zeros") and not isinstance(c.padding, str),
    ),
    nn.BatchNorm2d: (StackedBatchNorm2d, lambda b: b.affine and b.track_running_stats and b.momentum is not None),
    nn.GroupNorm: (StackedGroupNorm, lambda g: g.affine),
    nn.MaxPool2d: (StackedMaxPool2d, lambda m: not m.return_indices),
}


def stacked(module: nn.Module, name: str) -> nn.Module:
    """A copy with these layers in place of torch's; their weights are still to be set. `name`: of the model."""
    module = copy.deepcopy(module)
    for path, layer in list(module.named_modules()):
        kind, suits = _KINDS.get(type(layer), (None, None))
        if kind and suits(layer):
            owner, _, leaf = path.rpartition(".")
            setattr(module.get_submodule(owner), leaf, kind(layer))
        elif layer._parameters or layer._buffers:
            raise InputError(f"--fuse: --model {name} has the layer {layer}, made for one client only; use --fuse 1")
    return module
