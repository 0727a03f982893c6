"""The client actors of a run and how they come and go: started, replaced, given up, moved with the nodes."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import ray
from ray.exceptions import OutOfMemoryError, RayError

from raysim.engine.failures import Decision, FailurePolicy, FaultCount, OutOfMemory, RunFailure
from raysim.engine.ray_runner.actors import HostHello
from raysim.engine.ray_runner.placement import Placement
from raysim.engine.ray_runner.ray_internals import draining_nodes
from raysim.engine.runner import OnEvent
from raysim.engine.work_queue import Group

NODE_SECONDS = 5.0  # between looks at which nodes there are


class StartingActor(NamedTuple):
    """An actor that has not answered yet."""

    hello: Any  # reference to its first words
    since: float
    failures: int  # in a row, to start it


class ClientActors:
    """The client actors on their places. Actors that are being started have no work yet.

    Which work an actor had when it was lost is not known here: the dispatch of a pass keeps that.
    """

    def __init__(self, placement: Placement, policy: FailurePolicy, faults: FaultCount, on_event: OnEvent):
        self.placement, self.policy, self.faults, self.on_event = placement, policy, faults, on_event
        self.inputs: tuple[Any, Any] = (None, None)  # references to the configuration and the data
        self.actors: dict[int, Any] = {}
        self.callers: dict[tuple[int, str], tuple[Any, Any]] = {}  # number and method -> actor, and how to call it
        self.starting: dict[int, StartingActor] = {}
        self.fingerprints: list[dict[str, object]] = []  # of the devices the run began on
        self.nodes_checked = time.monotonic()

    def __len__(self) -> int:
        return len(self.actors)

    def ready(self) -> list[int]:
        """The actors that can be given work."""
        return sorted(self.actors.keys() - self.starting.keys())

    def call(self, index: int, method: str, returns: int, *arguments: Any) -> Any:
        """Call a method of an actor; returns as many references as it returns values."""
        actor, caller = self.callers.get((index, method), (None, None))
        if actor is not self.actors[index]:  # making a caller takes Ray as long as half a call
            actor = self.actors[index]
            caller = actor.call.options(name=method, num_returns=returns)
            self.callers[index, method] = actor, caller
        return caller.remote(method, *arguments)

    def follow_nodes(self, at_once: bool = False) -> None:
        """Let go of the actors of nodes that are gone or about to go, and start some on nodes that have joined."""
        if not at_once and time.monotonic() - self.nodes_checked < NODE_SECONDS:
            return
        self.nodes_checked = time.monotonic()
        going = draining_nodes()  # first: Ray ends such a node as soon as it has nothing to do
        lost, joined = self.placement.changes()
        for node, actors in lost.items():
            self.on_event("node_draining" if node in going else "node_lost", node=node, actors=actors)
            for index in actors:
                self.drop(index)
        for node, actors in joined.items():
            self.on_event("node_joined", node=node, actors=actors)
            for index in actors:
                self.start(index)
        if not self.actors:
            raise RunFailure("no node with client actors is left; `python -m raysim resume` goes on elsewhere")

    def start(self, index: int, failures: int = 0) -> None:
        """Start an actor; it gets work once it has answered."""
        self.actors[index] = self.placement.start_client_actor(index, *self.inputs)
        self.starting[index] = StartingActor(self.actors[index].hello.remote(), time.monotonic(), failures)

    def has_started(self, index: int) -> bool:
        """Whether an actor whose first words have come is usable; one that failed is started again, or given up."""
        hello, since, failures = self.starting.pop(index)
        try:
            answer: HostHello = ray.get(hello)
        except RayError as error:
            self.follow_nodes(at_once=True)
            if index in self.actors:
                decision = self.policy.actor_failed_to_start(failures + 1, needed=False)
                if decision is Decision.RETRY:
                    self.start(index, failures + 1)
                else:
                    self.give_up(index, f"it cannot be started: {first_line(error)}")
            return False
        fingerprint = answer.hello.fingerprint
        if fingerprint not in self.fingerprints and self.policy.actor_on_other_hardware() is Decision.GIVE_UP:
            self.give_up(index, f"it runs on something else: {fingerprint}")
            return False
        self.on_event("actor_back", actor=index, seconds=round(time.monotonic() - since, 1))
        return True

    def check_starting(self) -> None:
        """Called when none has answered for a while: their nodes may be gone, or there may be no room."""
        self.follow_nodes(at_once=True)
        for index, starting in self.starting.items():
            nobody_works = len(self.starting) == len(self.actors)
            if nobody_works and time.monotonic() - starting.since > self.policy.watchdog:
                raise self.stuck(f"client actor {index} to start")

    def replace(self, index: int, error: Exception, groups: list[Group]) -> None:
        """Act on the loss of an actor that was working on these groups; the old one is killed, if it can be reached."""
        self.faults.failures += 1
        self.on_event("actor_lost", actor=index, reason=first_line(error), clients=sum(map(len, groups)))
        if index in self.actors:
            ray.kill(self.actors[index])
        self.follow_nodes(at_once=True)
        if index not in self.actors:  # it went with its node
            return
        out_of_memory = isinstance(error, OutOfMemory | OutOfMemoryError)
        if self.policy.actor_lost(out_of_memory, others=len(self.actors) - 1) is Decision.GIVE_UP:
            self.give_up(index, "out of memory: the others do its work")
        else:
            self.start(index)

    def give_up(self, index: int, reason: str) -> None:
        """Go on without an actor that is of no use; without any the run ends."""
        self.on_event("actor_given_up", actor=index, reason=reason)
        self.drop(index)
        if not self.actors:
            raise RunFailure(f"no client actor is left; of the last one: {reason}")

    def drop(self, index: int) -> None:
        """Go on without this actor."""
        self.starting.pop(index, None)
        if actor := self.actors.pop(index, None):
            ray.kill(actor)

    def stuck(self, whom: str) -> RunFailure:
        """The failure of having waited too long."""
        self.on_event("no_progress", waiting_for=whom, seconds=self.policy.watchdog)
        return RunFailure(f"no progress for {self.policy.watchdog:g} s (--watchdog), waiting for {whom}")


def first_line(error: Exception) -> str:
    """What Ray says first of an error, of the many lines it has."""
    return str(error).strip().splitlines()[0]
