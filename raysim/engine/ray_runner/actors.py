"""The Ray actors: each hosts a Server or a Worker, which it imports in its own process. The driver needs no torch."""

from __future__ import annotations

import importlib
import os
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

import ray

from raysim.engine.ending import ending
from raysim.engine.failures import BrokenDevice, OutOfMemory, RunFailure, ServerLost
from raysim.engine.ray_runner.actor_metrics import ActorMetrics

if TYPE_CHECKING:
    from raysim.config import RunConfig
    from raysim.data.federated import FederatedData

SERVER = "raysim.engine.server:Server"
WORKER = "raysim.engine.worker:Worker"


class HostHello(NamedTuple):
    """What an actor answers once it is up."""

    hello: Any  # what its Server or Worker says
    gpus: list[str]  # that Ray gave it: numbers, or the identifiers of CUDA_VISIBLE_DEVICES (UUIDs, parts by MIG)


class _Host:
    """Holds one object and passes calls on to it."""

    is_server = False

    def __init__(self, kind: str, config: RunConfig, data: FederatedData, name: str):
        self.name = name
        self.gpus = [str(gpu) for gpu in ray.get_gpu_ids()]
        show_only(self.gpus)
        module, _, attribute = kind.partition(":")
        ending.hears = True  # nobody interrupts an actor: who raises KeyboardInterrupt means something else
        # An actor without a GPU of its own still sees every GPU of the machine; it must not use them.
        self.held = getattr(importlib.import_module(module), attribute)(config, data, use_gpu=bool(self.gpus))

    def __repr__(self) -> str:
        """The dashboard's column Repr, and what the job's log has before lines of this actor."""
        return self.name

    def hello(self) -> HostHello:
        return HostHello(self.held.hello(), self.gpus)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method by its name: Ray transports no references to methods. What its device raises gets a name."""
        try:
            return getattr(self.held, method)(*arguments)
        except (SystemExit, KeyboardInterrupt) as error:  # Ray would take it for a lost actor
            raise RunFailure(
                f"own code ended {self.name} in {method}: {type(error).__name__}: {error}", traceback.format_exc()
            ) from None
        except Exception as error:
            device = importlib.import_module("raysim.training.device")  # with torch, as the held object has
            if (trouble := device.trouble_of(error)) is None:
                raise
            kind = OutOfMemory if trouble == "memory" else BrokenDevice
            what = "out of memory" if trouble == "memory" else "the device is broken"
            where = f"{self.name}, GPU {', '.join(self.gpus)}" if self.gpus else self.name
            failure = kind(f"{what} in {method} ({where}): {error}", traceback.format_exc())
            failure.of_server = self.is_server
        raise failure


def show_only(gpus: list[str]) -> None:
    """Hide all GPUs but those that Ray gave, where it was told not to (RAY_EXPERIMENTAL_NOSET_…); before torch starts.

    An actor computes on the first one it sees.
    """
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if gpus and os.environ.get(f"RAY_EXPERIMENTAL_NOSET_{name}", "") not in ("", "0"):
            os.environ[name] = ",".join(gpus)


@ray.remote(num_cpus=0)
class ServerActor(_Host):
    """The server of a run, which takes its calls in order and leaves none out."""

    is_server = True

    def __init__(self, kind: str, config: RunConfig, data: FederatedData, name: str):
        super().__init__(kind, config, data, name)
        self.calls = 0  # done so far
        self.failure: Exception | None = None

    def call_in_order(self, number: int, method: str, *arguments: Any) -> Any:
        """Do the call with this number, from 0; after one that failed or never arrived, no more are done.

        The run looks at few of the answers, and would go on without having noticed.
        """
        if self.failure is None and number != self.calls:
            self.failure = ServerLost(f"call {self.calls} of the server was lost on the way")
        if self.failure is not None:
            raise self.failure
        try:
            answer = self.call(method, *arguments)
        except Exception as error:
            self.failure = error
            raise
        self.calls += 1
        return answer


@ray.remote(num_cpus=0)
class ClientActor(_Host):
    """Hosts whichever clients it is given, and takes no more of a GPU's memory than its share.

    `run` is the name its metrics are reported under; None reports none.
    """

    def __init__(
        self, kind: str, config: RunConfig, data: FederatedData, name: str, run: str | None, gpu_share: float = 0.0
    ):  # fmt: skip
        super().__init__(kind, config, data, name)
        if gpu_share:
            self.held.limit_memory(gpu_share)
        self.metrics = ActorMetrics(run, name.split()[0]) if run else None

    def call(self, method: str, *arguments: Any) -> Any:
        if self.metrics and method in ("train", "reply"):
            broadcast, groups, *_ = arguments
            self.metrics.at(broadcast.t, groups[0][0])
        return super().call(method, *arguments)
