"""A convolution of several clients' images on CPUs, each client with its own kernels, as products with patches.

Everywhere the batch is the last dimension, so that patches are copies of long runs.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from raysim.models.convolution import counted_as

TOGETHER_BYTES = 2**21  # of the patches of several clients that are made together


def convolve(x: Tensor, kernels: Tensor, stride: tuple[int, int], useful: float = 1.0) -> Tensor:
    """Convolve [clients, channels, height, width, batch] to [clients, out, rows, columns, batch].

    Kernels are [clients, out, height, width, channels]. `useful` is the share of the operations that counts
    (models/convolution.py).
    """
    if torch.is_autocast_enabled(x.device.type):
        return by_patches(x, kernels, stride)
    return Convolution.apply(x, kernels, stride, useful)


def convolve_and_pool(x: Tensor, kernels: Tensor) -> Tensor:
    """Convolve with kernels of odd height and width, and take the maximum over 2×2 blocks of the output.

    Blocks of 2×2 inputs are taken for channels of one position, and so are the four outputs that are pooled. Of images,
    which have few channels, patches have a third of the size then, products are of matrices with four times the rows,
    and the pool is a maximum of four long runs.
    """
    out, height, width = kernels.shape[1:4]
    sides = [side - (side - size + 1) % 2 for side, size in zip(x.shape[2:4], (height, width), strict=True)]
    x = x[:, :, : sides[0], : sides[1]].unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
    x = x.permute(0, 3, 5, 1, 2, 4, 6).contiguous().flatten(1, 3)
    share = height * width / ((height + 1) * (width + 1))
    outputs = convolve(x, BlockKernels.apply(kernels), (1, 1), share)
    return BlockMaximum.apply(outputs.unflatten(1, (4, out)))


class Patches(torch.autograd.Function):
    """The autograd function that copies the inputs under a kernel at each of its positions.

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
    """Return the inputs under a kernel at each of its positions, without a gradient; see `Patches`."""
    seen = x.unfold(2, size[0], stride[0]).unfold(3, size[1], stride[1])
    return seen.permute(0, 5, 6, 1, 2, 3, 4).contiguous()


def add_patches(total: Tensor, seen: Tensor, stride: tuple[int, int]) -> None:
    """Add every value in patches to the input that it was taken from: first by columns, then by rows."""
    (down, across), (rows, columns) = stride, seen.shape[4:6]
    wide = seen.new_zeros(*seen.shape[:2], *seen.shape[3:5], *total.shape[3:])
    for j in range(seen.shape[2]):
        wide[..., j : j + across * columns : across, :] += seen[:, :, j]
    for i in range(seen.shape[1]):
        total[:, :, i : i + down * rows : down] += wide[:, i]


def by_patches(x: Tensor, kernels: Tensor, stride: tuple[int, int]) -> Tensor:
    """Convolve by operations that torch can differentiate any number of times and that autocast knows."""
    seen = Patches.apply(x, kernels.shape[2:4], stride)
    return (kernels.flatten(2) @ seen.flatten(4).flatten(1, 3)).unflatten(2, seen.shape[4:])


class Convolution(torch.autograd.Function):
    """The autograd function of `convolve`.

    Patches are made for a few clients at a time, and once more for the gradient, so that they stay in the cache: to
    write and read memory takes longer than the arithmetic.
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


class BlockKernels(torch.autograd.Function):
    """The autograd function that turns kernels of odd height and width into kernels of 2×2 blocks.

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
    """Return where each weight of the block kernels comes from, and where each kernel weight goes.

    A weight that is always 0 comes from the place behind the last weight.
    """
    own = torch.arange(shape.numel()).view(shape)
    shifted = [F.pad(own, (0, 0, j, 1 - j, i, 1 - i), value=shape.numel()) for i in (0, 1) for j in (0, 1)]
    blocks = torch.stack(shifted).unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
    places = blocks.permute(0, 1, 2, 4, 3, 5, 6).flatten(4).flatten(0, 1)
    copies = places.flatten().argsort(stable=True)[: 4 * shape.numel()].view(-1, 4)
    return places, copies


class BlockMaximum(torch.autograd.Function):
    """The maximum over dimension 1, of length 4, whose gradient goes to the first maximum, as in torch's pooling.

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
