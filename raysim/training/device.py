"""The device that an actor computes on, and the settings of torch that decide the last bits of its results."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from raysim.errors import InputError

if TYPE_CHECKING:
    from raysim.config import RunConfig


def prepare_torch(config: RunConfig, use_gpu: bool = True) -> torch.device:
    """Set threads and determinism, and return the device: the first visible GPU where one may be used, or the CPU.

    The threads are set here since results depend on them, and Ray derives OMP_NUM_THREADS from an actor's CPUs.
    """
    torch.set_num_threads(config.threads)
    if not (use_gpu and torch.cuda.is_available()):
        return torch.device("cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision == "tf32"
    if not config.fast_nondeterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    return torch.device("cuda", 0)  # the only one that Ray leaves visible


def autocast(config: RunConfig, device: torch.device) -> torch.autocast:
    """A context in which the forward pass of a local step has the precision of --precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")


def compiled(function: Callable, config: RunConfig, device: torch.device) -> Callable:
    """The function, compiled as --compile says, once per actor: all batches but an epoch's last have one shape."""
    if config.compile == "no":
        return function
    if config.compile == "cuda-graphs" and device.type != "cuda":
        raise InputError("--compile cuda-graphs needs GPUs and there is none here; use --compile yes")
    if device.type == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        raise InputError("--compile needs a C++ compiler on the CPU (g++), and there is none; leave it out")
    mode = "reduce-overhead" if config.compile == "cuda-graphs" else None
    return torch.compile(function, mode=mode, dynamic=False)


def fingerprint(device: torch.device) -> dict[str, object]:
    """All that the last bits of results may depend on; equal hashes are promised between equal fingerprints."""
    gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if gpu else "cpu",
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),  # a plain string: unpickling its own class would import torch in the driver
        "cuda": torch.version.cuda if gpu else None,
    }
