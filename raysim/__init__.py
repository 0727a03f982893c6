"""raysim: federated learning on non-IID data, simulated on a Ray cluster of GPUs.

What is exported here is the public interface. It is imported on first use: `import raysim` loads neither torch nor ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.api import Comparison, Plan, Run, compare, open_run, plan, resume, run, search, sweep
    from raysim.cli import job
    from raysim.data.partitions import Partitioner
    from raysim.engine.callbacks import Callback
    from raysim.errors import InputError, PlanError, RaysimError
    from raysim.methods.base import Part, Upload
    from raysim.settings import setting

__version__ = "0.2.0"

_API = "raysim.api"
_EXPORTS = {
    "Callback": "raysim.engine.callbacks",
    "Comparison": _API,
    "InputError": "raysim.errors",
    "Part": "raysim.methods.base",
    "Partitioner": "raysim.data.partitions",
    "Plan": _API,
    "PlanError": "raysim.errors",
    "RaysimError": "raysim.errors",
    "Run": _API,
    "Upload": "raysim.methods.base",
    "compare": _API,
    "job": "raysim.cli",
    "open_run": _API,
    "plan": _API,
    "resume": _API,
    "run": _API,
    "search": _API,
    "setting": "raysim.settings",
    "sweep": _API,
}

__all__ = [
    "Callback", "Comparison", "InputError", "Part", "Partitioner", "Plan", "PlanError", "RaysimError", "Run", "Upload",
    "__version__", "compare", "job", "open_run", "plan", "resume", "run", "search", "setting", "sweep",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import an exported name when it is first used."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'raysim' has no attribute '{name}'")
    if _EXPORTS[name] == _API:  # it imports Ray, which reads its environment then
        from raysim.engine.ray_runner.environment import secure_local_ray

        secure_local_ray()
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
