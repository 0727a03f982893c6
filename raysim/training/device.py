"""Which device an actor computes on, and the settings of torch that decide the last bits of its results."""

import platform
import shutil

import ray
import torch

from raysim.config import RunConfig
from raysim.errors import InputError


def prepare_torch(config: RunConfig) -> torch.device:
    """Set threads and determinism, and give the device: the GPU Ray assigned, or the CPU.

    Ray derives OMP_NUM_THREADS from an actor's CPUs, and results depend on the thread count: so it is set here.
    """
    torch.set_num_threads(config.threads)
    # Under Ray an actor without a GPU share still sees every GPU of a machine; it must not use them.
    has_gpu = bool(ray.get_gpu_ids()) if ray.is_initialized() else True
    if not (has_gpu and torch.cuda.is_available()):
        return torch.device("cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision == "tf32"
    if not config.fast_nondeterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    return torch.device("cuda", 0)  # Ray hides the others


def autocast(config: RunConfig, device: torch.device):
    """Around the forward pass of a local step."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")


def compiled(function, config: RunConfig, device: torch.device):
    """The function as --compile asks for it. Compiled once per actor: local steps have one shape, but for the last."""
    if config.compile == "no":
        return function
    if config.compile == "cuda-graphs" and device.type != "cuda":
        raise InputError("--compile cuda-graphs needs GPUs and there is none here; use --compile yes")
    if device.type == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        raise InputError("--compile needs a C++ compiler on the CPU (g++), and there is none; leave it out")
    mode = "reduce-overhead" if config.compile == "cuda-graphs" else None
    return torch.compile(function, mode=mode, dynamic=False)


def fingerprint(device: torch.device) -> dict[str, object]:
    """What results may depend on: equal hashes are promised between equal fingerprints."""
    gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if gpu else "cpu",
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),  # a plain string: unpickling its own class would import torch in the driver
        "cuda": torch.version.cuda if gpu else None,
    }
