"""Profiles of training: floating-point operations by torch's own table of formulas, and torch's profiler."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from raysim.models import convolution


class FlopCounter(TorchDispatchMode):
    """A counter of floating-point operations: `with FlopCounter() as counter: …`, and then `counter.total`.

    It counts 2 per multiply-add, in matrix products and convolutions only. torch's own FlopCounterMode also counts by
    module, through hooks that refuse `torch.autograd.grad`.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would import its compiler, which takes seconds, and most runs compile nothing."""
        return False

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **kwargs or {})
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            self.total += round(formula(*args, **kwargs or {}, out_val=result) * convolution.useful)
        return result


@contextmanager
def profiling() -> Iterator[list[tuple[str, str]]]:
    """Profile the work of `with profiling() as found`.

    `found` then has one (table of operators, Chrome trace as JSON).
    """
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    found: list[tuple[str, str]] = []
    with torch.profiler.profile(activities=kinds) as profile:
        yield found
    order = "self_cuda_time_total" if len(kinds) > 1 else "self_cpu_time_total"
    table = profile.key_averages().table(sort_by=order, row_limit=40)
    with tempfile.TemporaryDirectory() as folder:
        profile.export_chrome_trace(str(Path(folder) / "trace.json"))
        found.append((table, (Path(folder) / "trace.json").read_text()))
