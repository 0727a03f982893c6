"""The client actors of a run and how they come and go: started, replaced, given up, moved with the nodes."""

import time

import ray
from ray.exceptions import OutOfMemoryError, RayError

from raysim.config import RunConfig
from raysim.engine.messages import TRIES, OutOfMemory, RunFailure
from raysim.engine.ray_runner.cluster import draining
from raysim.engine.ray_runner.placement import Places
from raysim.engine.ray_runner.plan import Plan

NODE_SECONDS = 5.0  # between looks at which nodes there are


class Crew:
    """The actors on a plan's places. Actors being started have no work yet; what they were at is the pool's concern."""

    def __init__(self, plan: Plan, config: RunConfig, run: str = "run", on_event=lambda kind, **details: None):
        self.places, self.watchdog, self.on_event = Places(plan, run, config.metrics), config.watchdog, on_event
        self.actors: dict[int, object] = {}
        self.starting: dict[int, tuple] = {}  # actor -> its hello, since when, and how often it has failed to start
        self.fingerprints: list[dict] = []  # of what the run began on
        self.failures, self.retries = 0, 0  # actors lost so far, clients run again
        self.looked = time.monotonic()  # at the nodes

    def follow_nodes(self, at_once: bool = False) -> None:
        """Let go of the actors of nodes that are gone or about to go, and start some on nodes that have joined."""
        if not at_once and time.monotonic() - self.looked < NODE_SECONDS:
            return
        self.looked = time.monotonic()
        going = draining()  # first: Ray ends such a node as soon as it has nothing to do
        lost, joined = self.places.changes()
        for node, actors in lost.items():
            self.on_event("node_draining" if node in going else "node_lost", node=node, actors=actors)
            for index in actors:
                self._drop(index)
        for node, actors in joined.items():
            self.on_event("node_joined", node=node, actors=actors)
            for index in actors:
                self._start(index)
        if not self.actors:
            raise RunFailure("no node with client actors is left; `python -m raysim resume` goes on elsewhere", "")

    def _start(self, index: int, tries: int = 0) -> None:
        self.actors[index] = self.places.start_actor(index, self.federation)
        self.starting[index] = (self.actors[index].call.remote("hello"), time.monotonic(), tries)

    def _has_started(self, index: int) -> bool:
        """Whether an actor that was being started is there; if it failed, it is tried again, and then given up."""
        hello, since, tries = self.starting.pop(index)
        try:
            fingerprint, _, _ = ray.get(hello)
        except RayError as error:
            self.follow_nodes(at_once=True)
            if index in self.actors and tries + 1 < TRIES:
                self._start(index, tries + 1)
            elif index in self.actors:
                self._give_up(index, f"it cannot be started: {str(error).strip().splitlines()[0]}")
            return False
        if fingerprint not in self.fingerprints:  # the run would no longer be the same as on one kind of device
            self._give_up(index, f"it runs on something else: {fingerprint}")
            return False
        self.on_event("actor_back", actor=index, seconds=round(time.monotonic() - since, 1))
        return True

    def _give_up(self, index: int, reason: str) -> None:
        """Go on without an actor that is no use; the last one's reason is the run's end."""
        self.on_event("actor_given_up", actor=index, reason=reason)
        self._drop(index)
        if not self.actors:
            raise RunFailure(f"no client actor is left; of the last one: {reason}", "")

    def _check_starting(self) -> None:
        """None has come for a while: their nodes may be gone, or there may be no room."""
        self.follow_nodes(at_once=True)
        for index, (_, since, _) in self.starting.items():
            if len(self.starting) == len(self.actors) and time.monotonic() - since > self.watchdog:
                raise self._stuck(f"client actor {index} to start")

    def _replace(self, index: int, error: RayError | OutOfMemory, groups: list[list[int]]) -> None:
        """A new actor in the lost one's place, if its node is there; without memory for it, the others go on alone.

        The old is killed: it may be only out of reach.
        """
        self.failures += 1
        reason = str(error).strip().splitlines()[0]
        self.on_event("actor_lost", actor=index, reason=reason, clients=sum(map(len, groups)))
        if index in self.actors:
            ray.kill(self.actors[index])
        self.follow_nodes(at_once=True)
        if isinstance(error, OutOfMemory | OutOfMemoryError) and index in self.actors and len(self.actors) > 1:
            self._give_up(index, "out of memory: the others do its work")
        elif index in self.actors:
            self._start(index)

    def _drop(self, index: int) -> None:
        """Go on without this actor."""
        self.starting.pop(index, None)
        if actor := self.actors.pop(index, None):
            ray.kill(actor)

    def _stuck(self, whom: str) -> RunFailure:
        self.on_event("no_progress", waiting_for=whom, seconds=self.watchdog)
        return RunFailure(f"no progress for {self.watchdog:g} s (--watchdog), waiting for {whom}", "")
