"""Arithmetic of this process's CPU: what its kernels make of a few fixed numbers, to the last bit.

The libraries under torch choose their kernels by the processor, by what they were built with and by variables of the
environment, and mostly do not tell. In which order a kernel adds decides the last bits of a result, so those of a few
small calculations tell instead: they differ where results do (CONTRIBUTING.md, "Golden hashes").
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch.nn import functional as F

from raysim.rng import stream

CONVOLUTIONS = ((4, 3, 32, 5, 32), (4, 32, 64, 5, 14))  # images, channels, filters, their side, that of the images
# Rows, terms and columns. A BLAS has other kernels for vectors and small matrices than for large ones.
PRODUCTS = ((1, 84, 10), (3, 5, 32), (10, 32, 10), (8, 32, 10), (5, 400, 120), (32, 512, 10), (50, 1600, 64))


def arithmetic(precision: str = "float32") -> dict[str, str]:
    """Return a hash for each library: of ATen's loops, oneDNN's convolutions and the products of the BLAS.

    With `bf16` there is one more, of convolutions and products in that precision.
    """
    found = {"loops": _hash(_loops()), "convolutions": _hash(_convolutions()), "products": _hash(_products())}
    if precision == "bf16":
        with torch.autocast("cpu", torch.bfloat16):
            found["bf16"] = _hash([*_convolutions(), *_products()])
    return found


def _loops() -> list[torch.Tensor]:
    x = _numbers(32, 100)
    y = x.log_softmax(1) + x.sigmoid() + x.tanh() + x.exp() + x.abs().sqrt()
    return [y, *torch.autograd.grad(y.square().sum(), x), x.sum(), x.norm(), x.mean(0), x.var(1)]


def _convolutions() -> list[torch.Tensor]:
    found = []
    for images, channels, filters, side, width in CONVOLUTIONS:
        x, weights = _numbers(images, channels, width, width), _numbers(filters, channels, side, side)
        y = F.conv2d(x.contiguous(memory_format=torch.channels_last), weights)
        found += [y, *torch.autograd.grad(y.square().sum(), (x, weights))]
    return found


def _products() -> list[torch.Tensor]:
    found = []
    for rows, terms, columns in PRODUCTS:
        x, weights = _numbers(rows, terms), _numbers(columns, terms)
        y = F.linear(x, weights)
        several = torch.bmm(x.expand(2, -1, -1), weights.T.expand(2, -1, -1))
        found += [y, x @ weights[0], several, *torch.autograd.grad(y.square().sum(), (x, weights))]
    return found


def _numbers(*shape: int) -> torch.Tensor:
    draw = stream(7, f"arithmetic/{shape}")
    return torch.from_numpy(draw.random(shape, dtype="float32") - 0.5).requires_grad_()


def _hash(results: Iterable[torch.Tensor]) -> str:
    sha = hashlib.sha256()
    for result in results:
        sha.update(result.detach().float().contiguous().numpy().data)
    return sha.hexdigest()[:12]
