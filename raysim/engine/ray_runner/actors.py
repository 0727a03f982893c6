"""The Ray actors: each hosts a Server or a Worker, which it imports in its own process. The driver needs no torch."""

from __future__ import annotations

import importlib
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

import ray

from raysim.engine.failures import OutOfMemory
from raysim.engine.ray_runner.actor_metrics import ActorMetrics

if TYPE_CHECKING:
    from raysim.config import RunConfig
    from raysim.data.federated import FederatedData

SERVER = "raysim.engine.server:Server"
WORKER = "raysim.engine.worker:Worker"


class HostHello(NamedTuple):
    """What an actor answers once it is up."""

    hello: Any  # what its Server or Worker says
    gpus: list[int]  # that Ray gave it


class _Host:
    """Holds one object and passes calls on to it."""

    def __init__(self, kind: str, config: RunConfig, data: FederatedData, name: str):
        self.name = name
        self.gpus = [int(i) for i in ray.get_gpu_ids()]
        module, _, attribute = kind.partition(":")
        # An actor without a GPU of its own still sees every GPU of the machine; it must not use them.
        self.held = getattr(importlib.import_module(module), attribute)(config, data, use_gpu=bool(self.gpus))

    def __repr__(self) -> str:
        """The dashboard's column Repr, and what the job's log has before lines of this actor."""
        return self.name

    def hello(self) -> HostHello:
        return HostHello(self.held.hello(), self.gpus)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method by its name: Ray transports no references to methods."""
        return getattr(self.held, method)(*arguments)


@ray.remote(num_cpus=0)
class ServerActor(_Host):
    """The server of a run."""


@ray.remote(num_cpus=0)
class ClientActor(_Host):
    """Hosts whichever clients it is given. `run` is the name its metrics are reported under; None reports none."""

    def __init__(self, kind: str, config: RunConfig, data: FederatedData, name: str, run: str | None):
        super().__init__(kind, config, data, name)
        self.metrics = ActorMetrics(run, name.split()[0]) if run else None

    def call(self, method: str, *arguments: Any) -> Any:
        if self.metrics and method in ("train", "reply"):
            broadcast, groups, *_ = arguments
            self.metrics.at(broadcast.t, groups[0][0])
        torch = importlib.import_module("torch")  # as the worker has done
        try:
            return super().call(method, *arguments)
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(f"out of memory in {method}: {error}", traceback.format_exc()) from None
