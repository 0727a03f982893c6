"""An accelerator that is not there: tensors that say they are on it, and are computed by the CPU.

It shows where tensors are, what is copied between host and device, where the host waits, and what is launched. It shows
nothing of CUDA's kernels and numerics, of memory, asynchrony or speed.

All of torch's private interface that this needs is in this file. Registering a device cannot be undone, so it is used
in a process of its own (`python -m tests.gpu`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

PACKAGE = str(Path(__file__).parents[2] / "raysim")
AROUND = ("training/profiling.py",)  # files that are in between without meaning anything
NAME = "pretended"

# Operations that make no kernel run: they give another view of memory, or memory without content.
_SILENT = """
    _reshape_alias _unsafe_view alias as_strided chunk detach diagonal empty empty_like empty_strided expand
    is_same_size lift_fresh movedim narrow new_empty new_empty_strided permute resize_ select set_ slice split
    split_with_sizes squeeze t transpose unbind unfold unsafe_chunk unsafe_split unsqueeze view
"""
SILENT = set(_SILENT.split())
# Operations whose result has a size, or is a number, that the host must wait for.
WAITING = {
    "_unique2",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
}
# Operations that also take indices from the host, which are then copied to the device.
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class WrongDevice(RuntimeError):
    """What CUDA refuses: tensors of host and device in one operation, or the host reading the device's memory."""


@dataclass(frozen=True)
class Event:
    """One launch, upload (host to device), download, wait of the host, or a mark that the test set."""

    kind: str
    operation: str
    place: str = ""  # where in the package it came from; not known of launches unless asked for


@dataclass
class Log:
    """All that happened on the device, in order."""

    events: list[Event] = field(default_factory=list)
    places_of_launches: bool = False

    def add(self, kind: str, operation: str) -> None:
        place = self.places_of_launches or kind not in ("launch", "mark")
        self.events.append(Event(kind, operation, _place() if place else ""))


LOG = Log()


def _place() -> str:
    """The innermost lines of the package that are being executed."""
    frame, found = sys._getframe(2), []
    while frame is not None and len(found) < 3:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE) and not name.endswith(AROUND):
            found.append(f"{name[len(PACKAGE) + 1 :]}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(found)


class _Backend(_DummyBackendModule):
    """What torch asks about the device."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


@cache
def device() -> torch.device:
    """The device; registered with the first call."""
    _setup_privateuseone_for_python_backend(NAME, _Backend())
    return torch.device(NAME, 0)


class OnDevice(torch.Tensor):
    """A tensor on the device. It shares its memory with a tensor of the CPU, so views and in-place writes just work."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, hosted: torch.Tensor) -> OnDevice:
        return torch.Tensor._make_subclass(cls, hosted, False, dispatch_device=True, device_for_backend_keys=device())

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) not in memo:
            copied: torch.Tensor = self.detach().clone().requires_grad_(self.requires_grad)
            memo[id(self)] = torch.nn.Parameter(copied) if isinstance(self, torch.nn.Parameter) else copied
        return memo[id(self)]

    def tolist(self) -> Any:
        LOG.add("wait", "tolist")
        return _hosted(self.detach()).tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise WrongDevice("can't convert a tensor of the device to numpy; use Tensor.cpu() first")

    __array__ = numpy


def _hosted(tensor: torch.Tensor) -> torch.Tensor:
    """The CPU's tensor with the same memory."""
    same = torch.empty(0, dtype=tensor.dtype)
    return same.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """Do an operation as the device would: note what it costs, and refuse what CUDA refuses."""
    name = func._schema.name.partition("::")[2]
    leaves = _pytree.tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    there = [isinstance(tensor, OnDevice) for tensor in tensors]
    target = kwargs.get("device")
    to_device = any(there) if target is None else torch.device(target).type == NAME
    if func is torch.ops.prim.device.default:
        return device() if there[0] else func(*args)
    if not any(there) and not to_device:
        return func(*args, **kwargs)
    if name in ("_to_copy", "copy_"):
        source, arrives = (there[0], to_device) if name == "_to_copy" else (there[1], there[0])
        LOG.add({(False, True): "upload", (True, False): "download"}.get((source, arrives), "launch"), name)
        to_device = arrives
    elif name == "_local_scalar_dense":
        LOG.add("wait", name)
    else:
        _check(name, args, tensors, there)
        if name not in SILENT:
            LOG.add("launch", name)
    return _computed(func, args, kwargs, to_device)


def _check(name: str, args: Any, tensors: list[torch.Tensor], there: list[bool]) -> None:
    """Note hidden copies and waits; a number of the host without dimensions is an argument of the kernel."""
    if name in WAITING or (name == "repeat_interleave" and len(tensors) > 1):
        LOG.add("wait", name)
    elsewhere = [tensor for tensor, on_device in zip(tensors, there, strict=True) if not on_device and tensor.ndim]
    if name in INDEXING:
        indices = [index for index in args[1] if index is not None]
        for index in indices:
            if index.dtype in (torch.bool, torch.uint8):
                LOG.add("wait", f"{name} by a mask")
            if not isinstance(index, OnDevice):
                LOG.add("upload", f"{name} by the host's index")
        if isinstance(args[0], OnDevice):
            elsewhere = [tensor for tensor in elsewhere if all(tensor is not index for index in indices)]
    if elsewhere and any(there):
        raise WrongDevice(f"{name}: tensors on host and device: {[(t.device.type, tuple(t.shape)) for t in tensors]}")


def _computed(func: Any, args: Any, kwargs: Any, to_device: bool) -> Any:
    """The result of the CPU's operation, on the device where it belongs there; what was written to stays itself."""
    given: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def unwrapped(leaf: Any) -> Any:
        if isinstance(leaf, OnDevice):
            hosted = _hosted(leaf)
            given[id(hosted)] = hosted, leaf
            return hosted
        return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

    def wrapped(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, OnDevice):
            return leaf
        if id(leaf) in given:
            return given[id(leaf)][1]
        return OnDevice(leaf) if to_device else leaf

    args, kwargs = _pytree.tree_map(unwrapped, (args, kwargs))
    return _pytree.tree_map(wrapped, func(*args, **kwargs))


class _Watch(TorchDispatchMode):
    """Sees operations that have no tensor of the device among their arguments, such as uploads."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


@contextmanager
def watched() -> Iterator[Log]:
    """A context in which tensors can be on the device; everything is noted in the log, which starts empty."""
    device()
    LOG.events = []
    replace, lift = torch.__future__.get_overwrite_module_params_on_conversion(), torch._C._only_lift_cpu_tensors()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a module's parameters become other objects
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device=…) is made on the host and copied, as for CUDA
    try:
        with torch.autograd.set_multithreading_enabled(False), _Watch():  # backward passes are to be seen too
            yield LOG
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(replace)
        torch._C._set_only_lift_cpu_tensors(lift)
