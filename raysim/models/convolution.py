"""Two convolutions whose gradients CPUs compute faster than torch does; elsewhere they are torch's own.

DeepConv2d, of many channels on small maps as at the end of a ResNet: the gradient of its kernel. ImageConv2d, the first
of a network: the gradient of images, which a synthesis asks for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

useful = 1.0  # the share of the operations under way that torch's convolution would do as well: those are counted


@contextmanager
def counted_as(share: float) -> Iterator[None]:
    """Count only this share of the operations that follow, since the others are padding."""
    global useful
    useful = share
    try:
        yield
    finally:
        useful = 1.0


class DeepConv2d(nn.Conv2d):
    """A 3×3 convolution without bias whose kernel gradient is a matrix product, on CPUs and small maps.

    oneDNN computes it in an order of its own and brings it into ours afterwards, which takes half as long again: for
    512 channels, 4×4 maps and 10 images the product takes 8.6 ms in place of 13.5.
    """

    def forward(self, x: Tensor) -> Tensor:
        positions = x.shape[0] * x.shape[2] * x.shape[3] / (self.stride[0] * self.stride[1])
        if x.device.type != "cpu" or positions >= self.in_channels or torch.is_autocast_enabled("cpu"):
            return super().forward(x)
        return _Convolution.apply(x, self.weight, self.stride, self.padding)


def deep(layer: nn.Conv2d) -> DeepConv2d:
    """Return a DeepConv2d with the weights of a 3×3 convolution without bias."""
    channels, out, stride = layer.in_channels, layer.out_channels, layer.stride
    made: Any = nn.utils.skip_init(DeepConv2d, channels, out, 3, stride=stride, padding=1, bias=False)  # no draws
    made.weight = layer.weight
    return made


class _Convolution(torch.autograd.Function):
    """The autograd function of a convolution without bias, groups and dilation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        return F.conv2d(x, weight, None, stride, padding)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        images, kernel = ctx.needs_input_grad[:2]
        back = torch.ops.aten.convolution_backward(
            gradient, x, weight, None, ctx.stride, ctx.padding, (1, 1), False, (0, 0), 1, [images, False, False]
        )
        found = _of_kernel(x, gradient, weight.shape, ctx.stride, ctx.padding) if kernel else None
        return back[0], found, None, None


def _of_kernel(
    x: Tensor, gradient: Tensor, shape: torch.Size, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """Return the gradient of the kernel, channels-last: a sum over images and positions for each of its weights."""
    out, channels, height, width = shape
    up, left = padding
    padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, left, left, up, up))
    seen = padded.unfold(1, height, stride[0]).unfold(2, width, stride[1])  # [image, row, column, channel, *kernel]
    columns = seen.permute(0, 1, 2, 4, 5, 3).reshape(-1, height * width * channels)
    product = gradient.permute(1, 0, 2, 3).reshape(out, -1) @ columns
    return product.view(out, height, width, channels).permute(0, 3, 1, 2)


class ImageConv2d(nn.Conv2d):
    """A convolution of images, without stride and padding, whose image gradient is computed by blocks of pixels.

    oneDNN computes gradients of 16 channels at a time, of which images have one or three. Here the channels of 4×4 or
    2×2 pixels count as so many channels of one position: half the time, for 32 filters of 5×5 on 3×32×32.
    """

    def forward(self, x: Tensor) -> Tensor:
        block = 4 if self.in_channels == 1 else 2
        fits = self.in_channels <= 4 and x.shape[2] % block == 0 and x.shape[3] % block == 0
        wanted = x.requires_grad and torch.is_grad_enabled() and not self.weight.requires_grad
        if not (fits and wanted) or x.device.type != "cpu" or torch.is_autocast_enabled("cpu"):
            return super().forward(x)
        return _OfImages.apply(x, self.weight, self.bias, block)


class _OfImages(torch.autograd.Function):
    """The autograd function of a frozen convolution of images, without stride, padding, groups and dilation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, block: int) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.block = block
        return F.conv2d(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        return _in_blocks(gradient, weight, ctx.block), None, None, None


def _in_blocks(gradient: Tensor, weight: Tensor, block: int) -> Tensor:
    """Return the gradient of the images: a convolution with the flipped kernel that gives blocks of pixels."""
    _, channels, height, width = weight.shape
    more, flipped = block - 1, weight.flip(2, 3).transpose(0, 1)
    places = [(i, j) for i in range(block) for j in range(block)]
    kernels = [F.pad(flipped, (j, more - j, i, more - i)) for i, j in places]
    kernel = torch.cat(kernels).contiguous(memory_format=torch.channels_last)
    down, across = gradient.shape[2:]
    plainly = down * across * height * width
    with counted_as(plainly / ((down + height - 1) * (across + width - 1) * (height + more) * (width + more))):
        blocks = F.conv2d(gradient, kernel, stride=block, padding=(height - 1, width - 1))
    count, _, rows, columns = blocks.shape
    pixels = blocks.permute(0, 2, 3, 1).reshape(count, rows, columns, block, block, channels)
    return pixels.permute(0, 1, 3, 2, 4, 5).reshape(count, rows * block, columns * block, channels).permute(0, 3, 1, 2)
