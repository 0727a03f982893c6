"""One network for several clients at once, each with its own weights, made of stacked layers.

An activation is [batch, clients·channels, …]: client i has the i-th group of channels, so that layers without weights
(ReLU, pooling, flatten) need no change. Weights are [clients, …]. On CPUs the batch comes last in memory, so that a
convolution is a copy of long runs and a batched matrix product, which is faster there than grouped convolutions; on
accelerators memory is in the usual order, and a convolution is one grouped convolution for all clients.
"""

import copy
import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysim.errors import InputError
from raysim.models.convolution import DeepConv2d, ImageConv2d, counted_as

PATCH_BYTES = 2**20  # of one client's patches; larger ones exceed the cache, and it is convolved directly
TOGETHER_BYTES = 2**21  # of the patches of several clients that are made together


class StackedLayer(nn.Module):
    """A layer for all clients, whose `weight` and `bias` (views of the clients' flat weights) are set from outside."""

    weight: Tensor
    bias: Tensor | None = None

    def __init__(self, layer: nn.Module, grouped: bool):
        super().__init__()
        # In a tuple, so that it does not become a submodule: only its settings are used.
        self.layer: tuple[Any] = (layer,)
        self.grouped = grouped


class StackedLinear(StackedLayer):
    """A stacked linear layer."""

    def forward(self, x: Tensor) -> Tensor:
        return self.by_client(x.unflatten(1, (len(self.weight), -1)).transpose(0, 1)).transpose(0, 1).flatten(1)

    def by_client(self, x: Tensor) -> Tensor:
        """The layer for inputs and outputs of the form [clients, batch, …]."""
        return x @ self.weight.mT if self.bias is None else torch.baddbmm(self.bias[:, None], x, self.weight.mT)


class Patches(torch.autograd.Function):
    """The inputs under a kernel at each of its positions.

    [clients, channels, height, width, batch] -> [clients, *size, channels, rows, columns, batch].

    The gradient adds whole planes; that of `unfold` would take twice as long as all else in a convolution.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: Sequence[int], stride: tuple[int, int]) -> Tensor:
        ctx.shape, ctx.stride = x.shape, stride
        return patches(x, size, stride)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        total = gradient.new_zeros(ctx.shape)
        add_patches(total, gradient, ctx.stride)
        return total, None, None


def patches(x: Tensor, size: Sequence[int], stride: tuple[int, int]) -> Tensor:
    """The inputs under a kernel, as `Patches` has them."""
    seen = x.unfold(2, size[0], stride[0]).unfold(3, size[1], stride[1])
    return seen.permute(0, 5, 6, 1, 2, 3, 4).contiguous()


def add_patches(total: Tensor, seen: Tensor, stride: tuple[int, int]) -> None:
    """Add every value in patches to that of the input it was taken from: first by columns, then by rows."""
    (down, across), (rows, columns) = stride, seen.shape[4:6]
    wide = seen.new_zeros(*seen.shape[:2], *seen.shape[3:5], *total.shape[3:])
    for j in range(seen.shape[2]):
        wide[..., j : j + across * columns : across, :] += seen[:, :, j]
    for i in range(seen.shape[1]):
        total[:, :, i : i + down * rows : down] += wide[:, i]


def by_patches(x: Tensor, kernels: Tensor, stride: tuple[int, int]) -> Tensor:
    """A `Convolution` by operations that torch differentiates as often as one likes, and that autocast knows."""
    seen = Patches.apply(x, kernels.shape[2:4], stride)
    return (kernels.flatten(2) @ seen.flatten(4).flatten(1, 3)).unflatten(2, seen.shape[4:])


class Convolution(torch.autograd.Function):
    """The convolution of [clients, channels, height, width, batch] to [clients, out, rows, columns, batch].

    Kernels are [clients, out, height, width, channels]. Patches are made for a few clients at a time, and once more for
    the gradient, so that they stay in the cache: to write and read memory takes longer than the arithmetic.
    `useful` is the share of the operations that counts (models/convolution.py).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernels: Tensor, stride: tuple[int, int], useful: float) -> Tensor:
        ctx.save_for_backward(x, kernels)
        ctx.stride, ctx.useful = stride, useful
        rows, columns = ((x.shape[i] - kernels.shape[i]) // stride[i - 2] + 1 for i in (2, 3))
        outputs = x.new_empty(*kernels.shape[:2], rows, columns, x.shape[4])
        count = max(1, TOGETHER_BYTES // (4 * kernels[0, 0].numel() * outputs[0, 0].numel()))
        ctx.slices = [slice(i, i + count) for i in range(0, len(x), count)]
        with counted_as(useful):
            for few in ctx.slices:
                seen = patches(x[few], kernels.shape[2:4], stride).flatten(4).flatten(1, 3)
                torch.bmm(kernels[few].flatten(2), seen, out=outputs[few].flatten(2))
        return outputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        x, kernels = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient will be differentiated in turn (FedMix)
            with counted_as(0):  # the outputs were counted when they were made
                outputs = by_patches(x, kernels, ctx.stride)
            with counted_as(ctx.useful):
                wanted = [x, kernels] if ctx.needs_input_grad[0] else [kernels]
                *of_images, of_kernels = torch.autograd.grad(outputs, wanted, gradient, create_graph=True)
            return of_images[0] if of_images else None, of_kernels, None, None
        of_x = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        of_kernels, gradient = kernels.new_empty(kernels.shape), gradient.flatten(2)
        with counted_as(ctx.useful):
            for few in ctx.slices:
                seen = patches(x[few], kernels.shape[2:4], ctx.stride)
                flat = seen.flatten(4).flatten(1, 3)
                torch.bmm(gradient[few], flat.mT, out=of_kernels[few].flatten(2))
                if of_x is not None:
                    torch.bmm(kernels[few].flatten(2).mT, gradient[few], out=flat)  # in the memory of the patches
                    add_patches(of_x[few], seen, ctx.stride)
        return of_x, of_kernels, None, None


def convolve(x: Tensor, kernels: Tensor, stride: tuple[int, int], useful: float = 1.0) -> Tensor:
    """As `Convolution`, also under autocast."""
    if torch.is_autocast_enabled(x.device.type):
        return by_patches(x, kernels, stride)
    return Convolution.apply(x, kernels, stride, useful)


class StackedConv2d(StackedLayer):
    """A stacked convolution, without groups or dilation."""

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
        """The layer for one client after the other, by torch's convolution."""
        (layer,) = self.layer
        biases = [None] * len(self.weight) if self.bias is None else self.bias
        each = zip(x.chunk(len(self.weight), 1), self.weight, biases, strict=True)
        last = torch.channels_last
        outputs = [F.conv2d(z.contiguous(memory_format=last), w, b, layer.stride) for z, w, b in each]
        return torch.cat(outputs, 1)

    def by_client(self, x: Tensor, kernels: Tensor) -> Tensor:
        """The layer but for its bias, for inputs and outputs as `Convolution` has them."""
        (layer,) = self.layer
        return convolve(x.contiguous(), kernels, layer.stride)


class StackedPooledConv2d(StackedConv2d):
    """A stacked convolution of images on CPUs, and the pool of 2×2 that follows it.

    Blocks of 2×2 pixels are channels of one position, and so are the four outputs that are pooled. Patches have a third
    of the size, products are of matrices with four times the rows, and the pool is a maximum of four long runs: half
    the time of both layers, for 6 filters of 5×5 on 1×28×28.
    """

    def directly(self, x: Tensor) -> Tensor:
        return F.max_pool2d(super().directly(x), 2)

    def by_client(self, x: Tensor, kernels: Tensor) -> Tensor:
        out, height, width = kernels.shape[1:4]
        sides = [side - (side - size + 1) % 2 for side, size in zip(x.shape[2:4], (height, width), strict=True)]
        x = x[:, :, : sides[0], : sides[1]].unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
        x = x.permute(0, 3, 5, 1, 2, 4, 6).contiguous().flatten(1, 3)
        share = height * width / ((height + 1) * (width + 1))
        outputs = convolve(x, BlockKernels.apply(kernels), (1, 1), share)
        return BlockMaximum.apply(outputs.unflatten(1, (4, out)))


class BlockKernels(torch.autograd.Function):
    """Kernels of odd height and width, [clients, out, height, width, channels], as they act on blocks of 2×2.

    The result is [clients, 4·out, rows, columns, 4·channels]: for each of the four outputs of a block the kernel is
    shifted by as much, and is 0 elsewhere.
    """

    @staticmethod
    def forward(ctx: Any, kernels: Tensor) -> Tensor:
        ctx.shape = kernels.shape
        places, _ = _blocks(kernels.shape[1:])
        return F.pad(kernels.flatten(1), (0, 1))[:, places]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        _, copies = _blocks(ctx.shape[1:])
        return gradient.flatten(1)[:, copies].sum(2).view(ctx.shape)


@lru_cache
def _blocks(shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Where each weight of block kernels is in the kernels, or behind them for 0; and where each of those has gone."""
    own = torch.arange(shape.numel()).view(shape)
    shifted = [F.pad(own, (0, 0, j, 1 - j, i, 1 - i), value=shape.numel()) for i in (0, 1) for j in (0, 1)]
    blocks = torch.stack(shifted).unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
    places = blocks.permute(0, 1, 2, 4, 3, 5, 6).flatten(4).flatten(0, 1)
    copies = places.flatten().argsort(stable=True)[: 4 * shape.numel()].view(-1, 4)
    return places, copies


class BlockMaximum(torch.autograd.Function):
    """The maximum over dimension 1, of length 4; its gradient goes to the first that has it, as in torch's pooling.

    All in floating point: torch's operations with truth values are not vectorised on CPUs.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x, most := x.amax(1))
        return most

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        with torch.no_grad():
            x, most = ctx.saved_tensors
            first = torch.eq(x, most[:, None], out=torch.empty_like(x))
            left = 1 - first[:, 0]
            for i in (1, 2, 3):
                first[:, i] *= left
                left -= first[:, i]
        return gradient[:, None] * first


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
    """Put a pool and the convolution of images before it into one layer, where they are of that kind."""
    for layers in [every for every in module.modules() if type(every) is nn.Sequential]:
        for i, (convolution, pool) in enumerate(itertools.pairwise(layers)):
            if _of_images(convolution) and _by_two(pool):
                layers[i], layers[i + 1] = StackedPooledConv2d(convolution, grouped=False), nn.Identity()


def _of_images(layer: Any) -> bool:
    """Whether it is a convolution of few channels that blocks of 2×2 suit: with more, they gain nothing."""
    if type(layer) not in (nn.Conv2d, ImageConv2d) or not _KINDS[type(layer)][1](layer):
        return False
    return layer.in_channels <= 4 and layer.stride == (1, 1) and all(size % 2 for size in layer.kernel_size)


def _by_two(layer: Any) -> bool:
    """Whether it pools blocks of 2×2."""
    if type(layer) is not nn.MaxPool2d or layer.return_indices or layer.ceil_mode:
        return False
    by_two = all(value in (2, (2, 2)) for value in (layer.kernel_size, layer.stride))
    return by_two and layer.padding in (0, (0, 0)) and layer.dilation in (1, (1, 1))
