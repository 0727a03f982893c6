"""raysim: federated learning on non-IID data, simulated on a Ray cluster of GPUs.

What is exported here is the public interface. It is imported on first use: `import raysim` loads neither torch nor ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.cli import job
    from raysim.config import RunConfig, resolve
    from raysim.engine.callbacks import Callback
    from raysim.errors import InputError, PlanError, RaysimError
    from raysim.methods.base import Part, Upload
    from raysim.settings import setting
    from raysim.single_run import run

__version__ = "0.1.0"

_EXPORTS = {
    "Callback": "raysim.engine.callbacks",
    "InputError": "raysim.errors",
    "Part": "raysim.methods.base",
    "PlanError": "raysim.errors",
    "RaysimError": "raysim.errors",
    "RunConfig": "raysim.config",
    "Upload": "raysim.methods.base",
    "job": "raysim.cli",
    "resolve": "raysim.config",
    "run": "raysim.single_run",
    "setting": "raysim.settings",
}

__all__ = [
    "Callback", "InputError", "Part", "PlanError", "RaysimError", "RunConfig", "Upload", "__version__", "job",
    "resolve", "run", "setting",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import an exported name when it is first used."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'raysim' has no attribute '{name}'")
    if name == "run":  # it imports Ray, which reads its environment then
        from raysim.engine.ray_runner.environment import secure_local_ray

        secure_local_ray()
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
