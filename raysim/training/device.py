"""The device that an actor computes on, the settings of torch that decide the last bits, and errors of devices."""

from __future__ import annotations

import gc
import os
import platform
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch

from raysim.errors import InputError, RaysimError
from raysim.training.arithmetic import arithmetic
from raysim.training.drivers import machine_has_gpu

if TYPE_CHECKING:
    from raysim.config import RunConfig

# What CUDA takes for a process before torch has allocated anything: 300 to 500 MB with the kernels of torch and cuDNN.
CONTEXT_BYTES = 500 * 2**20

# What libraries say when there is no memory left; torch.OutOfMemoryError is only its own allocator's.
NO_MEMORY = (
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DEVICE_ALLOCATION_FAILED",  # cuDNN 9
    "CUFFT_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "unable to find an engine to execute this computation",  # cuDNN, where no workspace was left
)
# How errors of libraries begin that come as a plain RuntimeError; most of them stick like torch.AcceleratorError.
OF_DEVICES = ("CUDA error", "CUDA driver error", "cuDNN error", "HIP error", "MIOpen error", "XPU error")


def prepare_torch(config: RunConfig, use_gpu: bool = True) -> torch.device:
    """Set threads and determinism, and return the device: the first visible GPU where one may be used, or the CPU.

    The threads are set here since results depend on them, and Ray derives OMP_NUM_THREADS from an actor's CPUs.
    """
    torch.set_num_threads(config.threads)
    if use_gpu:
        check_visible()
    kind = torch.accelerator.current_accelerator(check_available=True) if use_gpu else None
    if kind is None:
        return torch.device("cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision == "tf32"
    if not config.fast_nondeterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the device is first used
        torch.use_deterministic_algorithms(True)
        # It would write every new tensor twice.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cudnn.benchmark = False
    return torch.device(kind.type, 0)  # the only one that Ray leaves visible


def is_accelerator(device: torch.device) -> bool:
    """Whether operations are launched on the device rather than done by the host, so that few large ones are best."""
    return device.type != "cpu"


def check_visible() -> None:
    """Raise an error if this machine has a GPU and torch sees none: the CPU would silently do its work.

    Without any GPU the ones that Ray counts are logical, and computing on the CPU is meant.
    """
    if not torch.accelerator.is_available() and machine_has_gpu():
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
        built = built if torch.version.cuda or torch.version.hip else "CPUs only"
        raise RaysimError(
            f"there is a GPU here and torch sees none: torch {torch.__version__} is built for {built}, "
            f"CUDA_VISIBLE_DEVICES is '{os.environ.get('CUDA_VISIBLE_DEVICES', '')}'; install a torch that fits the "
            "driver, or start Ray with --num-gpus 0 to run on CPUs"
        )


def trouble_of(error: BaseException) -> Literal["memory", "broken"] | None:
    """Whether an error says that the device has no memory left or is broken; None for any other.

    A broken device (a failed assertion, an illegal access, an ECC error) fails in every later call of the process.
    """
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return "memory"
    of_device = isinstance(error, torch.AcceleratorError) or (
        isinstance(error, RuntimeError) and (text.startswith(OF_DEVICES) or "_STATUS_" in text or "engine to" in text)
    )
    if not of_device:
        return None
    return "memory" if any(words in text for words in NO_MEMORY) else "broken"


def empty_cache(device: torch.device) -> None:
    """Give the memory that torch keeps for later back to the device, for this process and its neighbours."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def limit_memory(device: torch.device, share: float) -> None:
    """Let this process take no more than its share of a GPU's memory, of which its CUDA context is a part."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(max(share - CONTEXT_BYTES / total, share / 2), device)


def peak_memory(device: torch.device) -> int:
    """The most bytes of a GPU that this process has held at once, without its CUDA context; 0 on other devices."""
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0


def autocast(config: RunConfig, device: torch.device) -> AbstractContextManager[Any]:
    """A context in which the forward pass of a local step has the precision of --precision."""
    return torch.autocast(device.type, torch.bfloat16) if config.precision == "bf16" else nullcontext()


def compiled(function: Callable, config: RunConfig, device: torch.device) -> Callable:
    """The forward pass of a local step, compiled as --compile says, for whole batches.

    Others, such as an epoch's last, run as they are. So what is compiled depends on the configuration and the data:
    torch compiles the first eight shapes only, and these would depend on which clients an actor saw first.
    """
    if config.compile == "no":
        return function
    if device.type == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        raise InputError("--compile needs a C++ compiler on the CPU (g++), and there is none; leave it out")
    fast = torch.compile(function, dynamic=False)
    return lambda module, x, y: (fast if len(y) == config.batch_size else function)(module, x, y)


def fingerprint(device: torch.device, precision: str = "float32") -> dict[str, object]:
    """Return all that the last bits of results depend on; equal hashes are promised between equal fingerprints.

    Of a CPU that is what its arithmetic gives, not its model: two models may choose the same kernels, and one model
    others where a variable of the environment or another build of torch says so. Of a GPU it is the GPU: random draws,
    all that is left to the host, are the same on every processor.
    """
    version = str(torch.__version__)  # a plain string: unpickling its own class would import torch in the driver
    if device.type == "cpu":
        return {
            "device": "cpu",
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "machine": platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": version,
            "cuda": None,
            **arithmetic(precision),
        }
    if device.type != "cuda":
        return {"device": device.type, "torch": version}
    return {
        "device": torch.cuda.get_device_name(device),
        "capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
        "torch": version,
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),  # MIOpen's with ROCm
    }
