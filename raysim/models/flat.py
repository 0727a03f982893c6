"""A model whose weights are one vector, so that loading, averaging and an optimiser step are one operation each."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


class FlatModel:
    """A module laid over one flat float32 vector, `weights`: its parameters, then its floating-point buffers.

    >>> model = FlatModel(nn.Linear(2, 1), torch.device("cpu"))
    >>> model.load(torch.tensor([1.0, 2.0, 3.0]))
    >>> model.module(torch.tensor([10.0, 10.0])).item()
    33.0
    """

    def __init__(self, module: nn.Module, device: torch.device):
        self.module: Any = module.to(device)  # a network of any kind, of which callers know the methods
        self.device = device
        parameters = dict(module.named_parameters())
        floating = {n: b for n, b in module.named_buffers() if b.is_floating_point()}
        self.integer_buffers = {n: b for n, b in module.named_buffers() if not b.is_floating_point()}
        self.spans: dict[str, tuple[int, torch.Size]] = {}  # name -> where it starts, its shape
        size = 0
        for name, tensor in (parameters | floating).items():
            self.spans[name] = (size, tensor.shape)
            size += tensor.numel()
        self.trainable = sum(p.numel() for p in parameters.values())  # elements of `weights` that are parameters
        self.weights = torch.empty(size, dtype=torch.float32, device=device)
        for name, tensor in (parameters | floating).items():
            view = self.view(self.weights, name)
            view.copy_(tensor.detach())
            if name in parameters:
                tensor.data = view
            else:
                owner, _, leaf = name.rpartition(".")
                module.get_submodule(owner)._buffers[leaf] = view
        self.parameters = list(parameters.values())
        self.parameter_names = list(parameters)

    @cached_property
    def mixes_samples(self) -> bool:
        """Whether the model's output for a sample in training depends on the other samples of its batch."""
        return any(isinstance(layer, _BatchNorm) for layer in self.module.modules())

    @cached_property
    def gradients(self) -> torch.Tensor:
        """Return one flat gradient of all parameters, made on first use.

        Clients' models, whose optimiser goes parameter by parameter, and frozen models never need it.
        """
        gradients = torch.zeros(self.trainable, dtype=torch.float32, device=self.device)
        for name, parameter in zip(self.parameter_names, self.parameters, strict=True):
            parameter.grad = self.view(gradients, name)
        return gradients

    @cached_property
    def flat_parameter(self) -> nn.Parameter:
        """Return all parameters as one, in the same memory, for an optimiser that steps over them at once."""
        parameter = nn.Parameter(self.weights[: self.trainable])
        parameter.grad = self.gradients
        return parameter

    def view(self, flat: torch.Tensor, name: str) -> torch.Tensor:
        """Return one parameter's or buffer's part of a flat vector, or of each row of a matrix, in its own shape.

        Convolution kernels are stored channels-last, with which both CPUs and GPUs compute fastest.
        """
        start, shape = self.spans[name]
        part = flat[..., start : start + shape.numel()]
        if len(shape) != 4:
            return part.view(*flat.shape[:-1], *shape)
        out, channels, height, width = shape
        return part.view(*flat.shape[:-1], out, height, width, channels).movedim(-1, -3)

    def add_gradient(self, flat: torch.Tensor) -> None:
        """Add a flat gradient to those of the parameters, by one operation for all that have one."""
        views = [self.view(flat, name) for name in self.parameter_names]
        having = []
        for parameter, view in zip(self.parameters, views, strict=True):
            if parameter.grad is None:
                parameter.grad = view
            else:
                having.append((parameter.grad, view))
        if having:
            torch._foreach_add_(*map(list, zip(*having, strict=True)))

    def load(self, flat: torch.Tensor) -> None:
        """Copy these weights into the model."""
        self.weights.copy_(flat)

    def frozen(self, flat: torch.Tensor) -> FlatModel:
        """Return a copy with these weights, in evaluation mode."""
        model = FlatModel(copy.deepcopy(self.module).eval(), self.device)
        model.load(flat)
        return model

    def personal_mask(self, parts: Iterable[Any], t: int) -> torch.Tensor | None:
        """Return which elements of `weights` the parts keep at the clients in round t; None if there are none."""
        matched = self._personal(parts, t)
        if not matched:
            return None
        mask = torch.zeros_like(self.weights, dtype=torch.bool)
        for name in matched:
            self.view(mask, name).fill_(True)
        return mask

    def bytes_sent(self, parts: Iterable[Any], t: int) -> int:
        """Count the bytes of the weights that travel in round t: all but those that the parts keep at the clients."""
        kept = sum(self.spans[name][1].numel() for name in self._personal(parts, t))
        return (len(self.weights) - kept) * self.weights.itemsize

    def _personal(self, parts: Iterable[Any], t: int) -> list[str]:
        patterns = [pattern for part in parts for pattern in part.ask("personal", self.module, t)]
        return [n for n in self.spans if any(fnmatch(n, p) for p in patterns)]

    def export(self, flat: torch.Tensor) -> dict[str, np.ndarray]:
        """Return the weights by name, as saved and hashed; integer buffers come from this module."""
        arrays = {name: self.view(flat, name).cpu().numpy().copy() for name in self.spans}
        arrays |= {name: b.cpu().numpy().copy() for name, b in self.integer_buffers.items()}
        own_name = getattr(self.module, "own_name", str)  # of a network that was changed for training (models/own.py)
        return {own_name(name): array for name, array in arrays.items()}

    def packed(self, arrays: Mapping[str, np.ndarray]) -> torch.Tensor:
        """Return the flat weights of what `export` returned."""
        flat, own_name = self.weights.clone(), getattr(self.module, "own_name", str)
        for name in self.spans:
            self.view(flat, name).copy_(torch.from_numpy(arrays[own_name(name)]))
        return flat
