"""The Ray runner: a server actor, the client actors, and the passes that are dispatched to them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, OwnerDiedError, RayActorError, RayError, RayTaskError

from raysim.data.federated import FederatedData
from raysim.engine.failures import (
    Decision,
    DeviceFailure,
    FailurePolicy,
    FaultCount,
    OutOfMemory,
    RunFailure,
    ServerLost,
)
from raysim.engine.ray_runner.actors import HostHello
from raysim.engine.ray_runner.dispatch import CallRates, Dispatch
from raysim.engine.ray_runner.lifecycle import ClientActors, first_line
from raysim.engine.ray_runner.placement import Placement
from raysim.engine.ray_runner.plan import Plan
from raysim.engine.runner import OnEvent, Runner, Started, ignore_event
from raysim.engine.work_queue import Answers, Pass
from raysim.errors import RaysimError

if TYPE_CHECKING:
    from raysim.config import RunConfig

Start = Callable[[Any, Any], Any]  # references to configuration and data -> an actor


class RayRunner(Runner):
    """Runs one run's server and clients as Ray actors, where its plan puts them."""

    def __init__(self, plan: Plan, config: RunConfig, run: str = "run", on_event: OnEvent = ignore_event):
        self.faults, self.on_event = FaultCount(), on_event
        self.policy = FailurePolicy.of(config)
        self.pinned = config.actor_per_client
        self.placement = Placement(plan, run, config.metrics)
        self.clients = ClientActors(self.placement, self.policy, self.faults, self._event)
        self.rates = CallRates()
        self.server: Any = None  # the actor
        self.server_calls = 0  # that it has been sent
        self.asked = ""  # what it was asked for last

    def reserve(self) -> None:
        self.placement.reserve()

    def start(self, config: RunConfig, data: FederatedData) -> Started:
        self.clients.inputs = ray.put(config), ray.put(data)
        numbers = list(self.placement.slot)
        starts: list[Start] = [self.placement.start_server]
        starts += [partial(self.placement.start_client_actor, i) for i in numbers]
        begun = [self._begin(start) for start in starts]
        answers = [self._begun(start, *pair) for start, pair in zip(starts, begun, strict=True)]
        (self.server, server_hello), *others = answers
        self.clients.actors = {i: actor for i, (actor, _) in zip(numbers, others, strict=True)}
        self.server_gpus, self.gpus = server_hello.gpus, [hello.gpus for _, hello in others]
        self.clients.fingerprints = [hello.hello.fingerprint for _, hello in others]
        return Started(self.clients.fingerprints, others[0][1].hello.model_bytes)

    def put(self, value: Any) -> Any:
        return ray.put(value)

    def get(self, reference: Any) -> Any:
        try:
            return self._get(reference, f"the server ({self.asked})")
        except RayError as error:
            raise _server_lost(error) from None

    def call_server(self, method: Callable[..., Any], *arguments: Any, returns: int = 1) -> Any:
        self.asked = name = method.__name__
        number, self.server_calls = self.server_calls, self.server_calls + 1
        return self.server.call_in_order.options(name=name, num_returns=returns).remote(number, name, *arguments)

    def run(self, work: Pass) -> Answers:
        return Dispatch(work, self.clients, self.rates, self.pinned, self._get).run()

    def follow_nodes(self) -> None:
        self.clients.follow_nodes()

    def restart_server(self, lost: ServerLost) -> None:
        self.faults.failures += 1
        self.on_event("server_lost", reason=str(lost))
        ray.kill(self.server)
        self.clients.follow_nodes(at_once=True)
        if (evicted := self.placement.move_server()) is not None:
            self.clients.drop(evicted)
        if lost.out_of_memory and (neighbour := self.placement.neighbour_of_server()) is not None:
            self.clients.give_up(neighbour, "the server had no memory left on their GPU")
        self.server, self.server_calls = self.placement.start_server(*self.clients.inputs), 0
        try:
            ray.get(self.server.hello.remote(), timeout=self.policy.watchdog)
        except RayError as error:
            raise RunFailure("the server actor was lost and cannot be started again", str(error)) from None

    def stop(self) -> None:
        for actor in [self.server, *self.clients.actors.values()] if self.server else []:
            ray.kill(actor)
        self.placement.release()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _event(self, kind: str, /, **details: Any) -> None:
        """Passes an event on to whoever listens now."""
        self.on_event(kind, **details)

    def _begin(self, start: Start) -> tuple[Any, Any]:
        """A new actor, and a reference to its first words."""
        actor = start(*self.clients.inputs)
        return actor, actor.hello.remote()

    def _begun(self, start: Start, actor: Any, hello: Any) -> tuple[Any, HostHello]:
        """The actor and its first words; another in its place where it failed, as actors do while a cluster starts."""
        failures = 0
        while True:
            try:
                return actor, self._get(hello, "the actors to start")
            except RayError as error:
                failures += 1
                if self.policy.actor_failed_to_start(failures, needed=True) is Decision.STOP:
                    raise RunFailure("an actor could not start", str(error)) from None
                self.faults.failures += 1
                self.on_event("start_failed", reason=first_line(error))
                ray.kill(actor)
                actor, hello = self._begin(start)

    def _get(self, reference: Any, whom: str) -> Any:
        """The value; what an actor's code raised comes out with its own traceback, an actor's death as Ray's error."""
        try:
            return ray.get(reference, timeout=self.policy.watchdog)
        except GetTimeoutError:
            raise self.clients.stuck(whom) from None
        except RayTaskError as error:
            if isinstance(error.cause, DeviceFailure) and error.cause.of_server:
                lost = ServerLost(f"the server actor was lost: {error.cause.message}", error.cause.traceback)
                lost.out_of_memory = isinstance(error.cause, OutOfMemory)
                raise lost from None
            if isinstance(error.cause, RaysimError):
                raise error.cause from None
            if isinstance(error.cause, RayError):  # what the task needed is gone
                raise _server_lost(error.cause) from None
            raise RunFailure(f"the run failed: {error.cause!r}", str(error)) from None
        except (ObjectLostError, OwnerDiedError) as error:
            raise _server_lost(error) from None
        except RayActorError as error:
            if self.server is not None and error.actor_id == self.server._actor_id.hex():
                raise _server_lost(error) from None
            raise


def _server_lost(error: RayError) -> ServerLost:
    return ServerLost(f"the server actor was lost: {first_line(error)}", str(error))
