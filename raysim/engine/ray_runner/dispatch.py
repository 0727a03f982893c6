"""One pass on the client actors: hands out its groups as actors become idle, and again what was lost with an actor."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from raysim.engine.failures import Decision, DeviceFailure, RunFailure
from raysim.engine.ray_runner import lifecycle
from raysim.engine.ray_runner.lifecycle import ClientActors
from raysim.engine.runner import WorkerCalls
from raysim.engine.work_queue import Answers, Call, Group, Pass, WorkQueue

Get = Callable[[Any, str], Any]  # a reference, and whom we wait for -> the value


@dataclass
class HandedOut:
    """A call that an actor is working on, or has finished."""

    actor: int
    groups: list[Group]
    rest: tuple[Any, ...]  # references to all but the first return value
    began: float
    first: Any = None  # the first return value, once it is finished

    @property
    def clients(self) -> int:
        return sum(map(len, self.groups))


@dataclass
class CallRates:
    """How slow calls have been in this run, to tell a hung actor from a slow one."""

    slowest: dict[str, float] = field(default_factory=dict)  # method -> most seconds per unit of cost

    def note(self, method: str, seconds: float, cost: float) -> None:
        self.slowest[method] = max(seconds / cost, self.slowest.get(method, 0.0))

    def expected(self, method: str, cost: float) -> float | None:
        """Seconds by the slowest call so far; None before the first."""
        return self.slowest[method] * cost if method in self.slowest else None


class Dispatch:
    """Carries out one pass.

    A client actor adds up its clients' results over a whole pass and is asked for the sums at the end. If it dies
    before that, all its groups of the pass are run again elsewhere: client work is pure, so nothing changes.
    """

    def __init__(self, work: Pass, clients: ClientActors, rates: CallRates, pinned: bool, get: Get):
        self.work, self.clients, self.rates, self.get = work, clients, rates, get
        self.pinned = pinned and work.states is not None  # each client only on its own actor
        self.policy, self.faults = clients.policy, clients.faults
        self.queue = WorkQueue(work.groups, work.costs, len(clients))
        self.answers = Answers()
        self.idle: list[int] = []
        self.busy: dict[Any, HandedOut] = {}  # by the reference to the first return value
        self.deaths: dict[int, int] = {}  # first client of a call -> actors lost with it

    def run(self) -> Answers:
        """Hand out all groups, until everything is done and collected."""
        while self.queue:
            done = self.hand_out_all()
            if self.work.over_clients:
                done = self.collect(done)
            for calls in done.values():
                for call in calls:
                    self.answers.first.append(call.first)
                    self.answers.rest.append(call.rest)
        return self.answers

    def hand_out_all(self) -> dict[int, list[HandedOut]]:
        """Empty the queue; returns each actor's finished calls."""
        self.idle = self.clients.ready()[::-1]
        self.busy = {}
        self.deaths = {}
        done: dict[int, list[HandedOut]] = {}
        while self.queue or self.busy:
            while self.queue and (self.idle or self.pinned):
                self.hand_out()
            reference = self.wait()
            if reference is None:
                continue
            call = self.busy.pop(reference)
            try:
                call.first = self.get(reference, "a client actor")
            except (RayError, DeviceFailure) as error:  # it died, went with its node, its device failed it
                self.lost(call, error, done)
            else:
                self.finished(call, done)
            self.idle = [i for i in self.idle if i in self.clients.actors]  # a node may have gone with some
        return {index: calls for index, calls in done.items() if calls}

    def hand_out(self) -> None:
        """Give the next chunk of the queue to an idle actor."""
        groups = self.queue.take(only_one=self.pinned)
        index = self.own_actor(groups[0][0]) if self.pinned else self.idle.pop()
        call = self.clients.actors[index].call.options(name=self.work.name, num_returns=self.work.returns)
        references = call.remote(self.work.name, *self.work.arguments(groups))
        first, *rest = references if self.work.returns > 1 else (references,)
        self.busy[first] = HandedOut(index, groups, tuple(rest), time.monotonic())

    def own_actor(self, client: int) -> int:
        """With an actor for each client: its own, or where that went with its node, one of the others."""
        actors = self.clients.actors
        return client if client in actors else sorted(actors)[client % len(actors)]

    def finished(self, call: HandedOut, done: dict[int, list[HandedOut]]) -> None:
        """A call has returned."""
        ended = time.monotonic()
        done.setdefault(call.actor, []).append(call)
        self.answers.calls.append(Call(call.actor, call.began, ended))
        self.rates.note(self.work.name, ended - call.began, self.queue.cost_of(call.groups))
        self.idle.append(call.actor)

    def lost(self, call: HandedOut, error: Exception, done: dict[int, list[HandedOut]]) -> None:
        """A call's actor is lost: what only it had goes back into the queue."""
        self.answers.calls.append(Call(call.actor, call.began, time.monotonic(), lost=True))
        first = call.groups[0][0]
        self.deaths[first] = self.deaths.get(first, 0) + 1
        if self.policy.group_took_actor_down(self.deaths[first]) is Decision.STOP:
            who = "test batch" if self.work.states is None else "client"
            raise RunFailure(f"{who} {first} took its actor down {self.deaths[first]} times", str(error)) from None
        # A summing actor takes its finished calls with it; other results are safe with the driver.
        earlier = done.pop(call.actor, []) if self.work.over_clients else []
        groups = [group for one in [*earlier, call] for group in one.groups]
        self.queue.give_back(groups)
        if self.work.over_clients:  # else the groups are of test batches
            self.faults.retries += sum(map(len, groups))
        self.clients.replace(call.actor, error, groups)

    def wait(self) -> Any | None:
        """The next call to return, or None where only an actor has started meanwhile.

        An actor that takes far too long is killed, and its call then fails as lost.
        """
        clients = self.clients
        while True:
            seconds = self.kill_hung()
            if clients.starting:  # on a node that has gone it would never come
                seconds = min(seconds, lifecycle.NODE_SECONDS)
            hellos = {starting.hello: index for index, starting in clients.starting.items()}
            found, _ = ray.wait([*self.busy, *hellos], num_returns=1, timeout=max(seconds, 0))
            if found and found[0] in self.busy:
                return found[0]
            if found:
                index = hellos[found[0]]
                if clients.has_started(index):
                    for call in self.busy.values():
                        if call.actor == index:  # only now its work begins
                            call.began = time.monotonic()
                    self.idle.append(index)
                    return None
            elif clients.starting:
                clients.check_starting()

    def kill_hung(self) -> float:
        """Kill the actors whose calls have taken too long; returns the seconds until the next one will have."""
        now = time.monotonic()
        soonest = self.policy.watchdog
        for call in self.busy.values():
            left = self.allowed(call) - (now - call.began)
            if left <= 0:
                clients = [k for group in call.groups for k in group]
                self.clients.on_event(
                    "actor_hung", actor=call.actor, clients=clients, seconds=round(now - call.began, 1)
                )
                if call.actor in self.clients.actors:
                    ray.kill(self.clients.actors[call.actor])
                call.began, left = now, self.policy.least_seconds  # its end will be noticed soon
            soonest = min(soonest, left)
        return soonest

    def allowed(self, call: HandedOut) -> float:
        """Seconds a call may take."""
        if call.actor in self.clients.starting:
            return self.policy.watchdog
        expected = self.rates.expected(self.work.name, self.queue.cost_of(call.groups))
        return self.policy.seconds_allowed(call.clients, expected)

    def collect(self, done: dict[int, list[HandedOut]]) -> dict[int, list[HandedOut]]:
        """Ask every actor that worked for its sums; the groups of one that is gone go back into the queue."""
        name = WorkerCalls.collect.__name__
        actors = self.clients.actors
        asked = {i: actors[i].call.options(name=name, num_returns=2).remote(name) for i in done if i in actors}
        kept = {}
        for index, calls in done.items():
            groups = [group for call in calls for group in call.groups]
            expected = sum(map(len, groups))
            try:
                summed = self.get(asked[index][0], f"client actor {index} ({name})") if index in asked else None
            except (RayError, DeviceFailure) as error:
                self.clients.replace(index, error, groups)
                summed = None
            if summed is None:  # it is gone, or its node is
                self.queue.give_back(groups)
                self.faults.retries += expected
                continue
            if summed != expected:
                raise RunFailure(f"client actor {index} summed {summed} clients where {expected} were expected")
            self.answers.sums.append(asked[index][1])
            kept[index] = calls
        return kept
