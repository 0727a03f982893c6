"""One pass on the client actors: hands out its groups as actors become idle, and again what was lost with an actor."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from raysim.engine.failures import Decision, DeviceFailure, RunFailure
from raysim.engine.ray_runner import lifecycle
from raysim.engine.ray_runner.lifecycle import ClientActors
from raysim.engine.runner import WorkerCalls
from raysim.engine.work_queue import Answers, Call, Group, Pass, WorkQueue

Get = Callable[[Any, str], Any]  # a reference, or a list of them, and whom we wait for -> the value, or values

MOST_SUMS = 64  # that the server is sent; those of more nodes are added up once more on the way


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


class Collected(NamedTuple):
    """What an actor has handed over, or has put together of several actors': references into the store of its node."""

    actor: int
    node: str
    sums: Any
    uploads: list[Any]  # what its clients sent client by client


class AskedSums(NamedTuple):
    """A call for an actor's sums: references to what it returns, and its node, which may be lost before it answers."""

    node: str
    count: Any  # of the clients in the sums
    sums: Any


@dataclass
class CallRates:
    """How slow calls have been in this run, to tell a hung actor from a slow one."""

    slowest: dict[str, float] = field(default_factory=dict)  # kind of pass -> most seconds per unit of cost

    def note(self, kind: str, seconds: float, cost: float) -> bool:
        """Take in a call's time; says whether it is the first of its kind."""
        first = kind not in self.slowest
        self.slowest[kind] = max(seconds / cost, self.slowest.get(kind, 0.0))
        return first

    def expected(self, kind: str, cost: float) -> float | None:
        """Seconds by the slowest call so far; None before the first."""
        return self.slowest[kind] * cost if kind in self.slowest else None


class Deadline(NamedTuple):
    """When a call counts as hung."""

    at: float  # by the monotonic clock
    number: int  # orders equals
    reference: Any  # to the call's first return value


class Deadlines:
    """The deadlines of calls, soonest first; a call costs the same however many there are."""

    def __init__(self) -> None:
        self.heap: list[Deadline] = []
        self.numbers = count()

    def add(self, at: float, reference: Any) -> None:
        heapq.heappush(self.heap, Deadline(at, next(self.numbers), reference))

    def next(self, busy: Container[Any]) -> Deadline | None:
        """The soonest of a call that is still busy; those of others are dropped."""
        while self.heap and self.heap[0].reference not in busy:
            heapq.heappop(self.heap)
        return self.heap[0] if self.heap else None

    def pop(self) -> None:
        heapq.heappop(self.heap)


class Dispatch:
    """Carries out one pass.

    A client actor adds up its clients' results over a whole pass, and is asked for the sums right behind its last call,
    so that it need not wait for us in between. If it dies before it has handed them over, all its groups of the pass
    are run again elsewhere: client work is pure, so nothing changes.
    """

    def __init__(self, work: Pass, clients: ClientActors, rates: CallRates, pinned: bool, get: Get):
        self.work, self.clients, self.rates, self.get = work, clients, rates, get
        self.pinned = pinned and work.states is not None  # each client only on its own actor
        self.policy, self.faults = clients.policy, clients.faults
        self.queue = WorkQueue(work.groups, work.costs)
        self.pace, self.fastest = work.pace, work.pace.fastest()
        self.answers = Answers()
        self.idle: list[int] = []
        self.busy: dict[Any, HandedOut] = {}  # by the reference to the first return value
        self.deadlines = Deadlines()  # of the busy calls, and of some that have returned since
        self.deaths: dict[int, int] = {}  # first client of a group -> actors lost while it was with them
        self.to_ask: set[int] = set()  # actors with work that they have not been asked to hand over
        self.asked: dict[int, list[AskedSums]] = {}  # by actor; more than one where lost work came to it afterwards
        self.collected: list[Collected] = []

    def run(self) -> Answers:
        """Hand out all groups, until everything is done and collected."""
        while self.queue:
            done = self.hand_out_all()
            if self.work.over_clients:
                done = self.collect(done)
            for calls in done.values():
                for call in calls:
                    self.answers.first.append(call.first)
                    self.answers.actors.append(call.actor)
                    self.answers.states.extend(call.rest[1:])
        for one in self.put_together_by_node():
            self.answers.sums.append(one.sums)
            self.answers.uploads += one.uploads
        return self.answers

    def hand_out_all(self) -> dict[int, list[HandedOut]]:
        """Empty the queue; returns each actor's finished calls."""
        self.idle = self.clients.ready()[::-1]
        self.busy, self.deadlines = {}, Deadlines()
        self.deaths, self.asked = {}, {}
        done: dict[int, list[HandedOut]] = {}
        while self.queue or self.busy:
            self.hand_out_to_idle()
            if not self.queue:
                self.ask_for_sums()
            references = self.wait()
            for reference, answer in zip(references, self.values(references, "a client actor"), strict=True):
                call = self.busy.pop(reference)
                if isinstance(answer, Exception):  # it died, went with its node, or its device failed it
                    self.lost(call, answer, done)
                else:
                    call.first = answer
                    self.finished(call, done)
        return {index: calls for index, calls in done.items() if calls}

    def hand_out_to_idle(self) -> None:
        """Give chunks of the queue to the idle actors, the fastest first."""
        if self.pinned:
            while self.queue:
                groups = self.queue.take(0.0)
                self.hand_out(self.own_actor(groups[0][0]), groups)
            return
        least, alike = self.pace.least(len(self.clients)), self.pace.alike()
        there = (index for index in self.idle if index in self.clients.actors)  # a node may have gone with some
        self.idle = sorted(there, key=self.pace.of)
        while self.queue and self.idle and not self.leaves_it_to_others(self.idle[-1]):
            index = self.idle.pop()
            self.hand_out(index, self.queue.take(self.pace.of(index) / len(self.clients), least, alike))

    def leaves_it_to_others(self, index: int) -> bool:
        """Whether this actor would need for its next group twice the time in which the others are done with everything.

        Twice, since they have their hands full now, and speeds are not known exactly.
        """
        speed, cost = self.pace.of(index), self.queue.next_cost()
        others = max(len(self.clients) - speed, 1e-9)  # the sum of their speeds
        return bool(self.busy) and cost / speed > 2 * (self.queue.left / others + cost / self.fastest)

    def hand_out(self, index: int, groups: list[Group]) -> None:
        """Give groups to an actor."""
        references = self.clients.call(index, self.work.name, self.work.returns, *self.work.arguments(groups))
        first, *rest = references if self.work.returns > 1 else (references,)
        self.busy[first] = handed = HandedOut(index, groups, tuple(rest), time.monotonic())
        self.deadlines.add(handed.began + self.allowed(handed), first)
        if self.work.over_clients:
            self.to_ask.add(index)

    def ask_for_sums(self) -> None:
        """Ask every actor that has work, behind its last call, to hand over its sums."""
        for index in sorted(self.to_ask & self.clients.actors.keys()):
            node = self.clients.placement.node_of(index)
            references = self.clients.call(index, WorkerCalls.collect.__name__, 2)
            self.asked.setdefault(index, []).append(AskedSums(node, *references))
        self.to_ask.clear()

    def values(self, references: list[Any], whom: str) -> list[Any]:
        """What is behind the references; an error in place of what is lost with its actor."""
        try:
            return self.get(references, whom)
        except (RayError, DeviceFailure):  # of one of them: each by itself says which
            return [self.value(reference, whom) for reference in references]

    def value(self, reference: Any, whom: str) -> Any:
        try:
            return self.get(reference, whom)
        except (RayError, DeviceFailure) as error:
            return error

    def own_actor(self, client: int) -> int:
        """With an actor for each client: its own, or where that went with its node, one of the others."""
        actors = self.clients.actors
        return client if client in actors else sorted(actors)[client % len(actors)]

    def finished(self, call: HandedOut, done: dict[int, list[HandedOut]]) -> None:
        """A call has returned."""
        ended = time.monotonic()
        done.setdefault(call.actor, []).append(call)
        self.answers.calls.append(Call(call.actor, call.began, ended))
        if self.rates.note(self.work.kind, ended - call.began, self.queue.cost_of(call.groups)):
            self.set_deadlines()  # until now there was nothing to compare calls with
        if call.actor in self.clients.actors:
            self.idle.append(call.actor)

    def lost(self, call: HandedOut, error: Exception, done: dict[int, list[HandedOut]]) -> None:
        """A call's actor is lost: what only it had goes back into the queue."""
        self.answers.calls.append(Call(call.actor, call.began, time.monotonic(), lost=True))
        for group in call.groups:
            self.deaths[group[0]] = self.deaths.get(group[0], 0) + 1
        first = call.groups[0][0]  # alone if it was in such a call before
        if self.policy.group_took_actor_down(self.deaths[first]) is Decision.STOP:
            who = "test batch" if self.work.states is None else "client"
            raise RunFailure(f"{who} {first} took its actor down {self.deaths[first]} times", str(error)) from None
        self.to_ask.discard(call.actor)
        self.asked.pop(call.actor, None)
        # A summing actor takes its finished calls with it; other results are safe with the driver.
        earlier = done.pop(call.actor, []) if self.work.over_clients else []
        groups = [group for one in [*earlier, call] for group in one.groups]
        self.queue.give_back(groups, suspects=call.groups)
        if self.work.over_clients:  # else the groups are of test batches
            self.faults.retries += sum(map(len, groups))
        self.clients.replace(call.actor, error, groups)

    def wait(self) -> list[Any]:
        """The calls that have returned by now, at least one; none where only an actor has started meanwhile.

        An actor that takes far too long is killed, and its call then fails as lost.
        """
        clients = self.clients
        while True:
            seconds = self.kill_hung()
            if clients.starting:  # on a node that has gone it would never come
                seconds = min(seconds, lifecycle.NODE_SECONDS)
            hellos = {starting.hello: index for index, starting in clients.starting.items()}
            found, others = ray.wait([*self.busy, *hellos], num_returns=1, timeout=max(seconds, 0))
            if found and others:  # more may have come while the last ones were dealt with: one look for all of them
                found += ray.wait(others, num_returns=len(others), timeout=0)[0]
            for reference in [one for one in found if one in hellos]:
                index = hellos[reference]
                if index not in clients.starting or clients.starting[index].hello != reference:
                    continue  # while we looked at another that failed, this one was let go with its node
                if clients.has_started(index):
                    self.idle.append(index)
                    if self.pinned:  # it was given its call before
                        self.begin_now(index)
            if found:
                return [reference for reference in found if reference in self.busy]
            if clients.starting:
                clients.check_starting()

    def begin_now(self, index: int) -> None:
        """Count the time of an actor's call from now on, since only now it has started."""
        for call in self.busy.values():
            if call.actor == index:
                call.began = time.monotonic()
        self.set_deadlines()

    def set_deadlines(self) -> None:
        """Compute the deadlines of all busy calls anew."""
        self.deadlines = Deadlines()
        for reference, call in self.busy.items():
            self.deadlines.add(call.began + self.allowed(call), reference)

    def kill_hung(self) -> float:
        """Kill the actors whose calls have taken too long; returns the seconds until the next one will have."""
        now = time.monotonic()
        while (deadline := self.deadlines.next(self.busy)) is not None and deadline.at <= now:
            self.deadlines.pop()
            call = self.busy[deadline.reference]
            left = self.allowed(call) - (now - call.began)  # more than at hand-out, if a slower call has returned
            if left <= 0:
                clients = [k for group in call.groups for k in group]
                self.clients.on_event(
                    "actor_hung", actor=call.actor, clients=clients, seconds=round(now - call.began, 1)
                )
                if call.actor in self.clients.actors:
                    ray.kill(self.clients.actors[call.actor])
                call.began, left = now, self.policy.least_seconds  # its end will be noticed soon
            self.deadlines.add(now + left, deadline.reference)
        return self.policy.watchdog if deadline is None else min(self.policy.watchdog, deadline.at - now)

    def allowed(self, call: HandedOut) -> float:
        """Seconds a call may take."""
        if call.actor in self.clients.starting:
            return self.policy.watchdog
        expected = self.rates.expected(self.work.kind, self.queue.cost_of(call.groups))
        return self.policy.seconds_allowed(call.clients, expected)

    def collect(self, done: dict[int, list[HandedOut]]) -> dict[int, list[HandedOut]]:
        """Take the sums of every actor that worked; the groups of one that is gone go back into the queue."""
        asked = [(index, one) for index in done if index in self.clients.actors for one in self.asked.get(index, ())]
        whom = f"the client actors ({WorkerCalls.collect.__name__})"
        summed: dict[int, list[Any]] = {}
        for (index, _), found in zip(asked, self.values([one.count for _, one in asked], whom), strict=True):
            summed.setdefault(index, []).append(found)
        kept = {}
        for index, calls in done.items():
            groups = [group for call in calls for group in call.groups]
            expected, counts = sum(map(len, groups)), summed.get(index)
            error = next((one for one in counts or [] if isinstance(one, Exception)), None)
            if error:
                self.clients.replace(index, error, groups)
            if counts is None or error:  # it is gone, or its node is
                self.queue.give_back(groups, suspects=[])
                self.faults.retries += expected
                continue
            if sum(counts) != expected:
                raise RunFailure(f"client actor {index} summed {sum(counts)} clients where {expected} were expected")
            uploads = [call.rest[0] for call in calls if call.first.uploads]
            for one in self.asked[index]:
                self.collected.append(Collected(index, one.node, one.sums, uploads))
                uploads = []
            kept[index] = calls
        return kept

    def put_together_by_node(self) -> list[Collected]:
        """What was collected, one sum and one list of uploads per node: an actor there puts its node's together.

        Whole numbers add up to the same in any order. On a single node nothing would be gained.
        """
        nodes: dict[str, list[Collected]] = {}
        for one in self.collected:
            nodes.setdefault(one.node, []).append(one)
        if len(nodes) < 2:
            return self.collected
        found = self.put_together(list(nodes.values()))
        while len(found) > MOST_SUMS:
            several = [found[i : i + MOST_SUMS] for i in range(0, len(found), MOST_SUMS)]
            found, before = self.put_together(several), found
            if len(found) == len(before):  # those who should have added are lost: the server adds them all
                break
        return found

    def put_together(self, groups: list[list[Collected]]) -> list[Collected]:
        """One for each group, made by the actor of its first; where that is lost, the group as it is."""
        name, asked = WorkerCalls.add.__name__, {}
        for i, group in enumerate(groups):
            sums, uploads = [one.sums for one in group], [each for one in group for each in one.uploads]
            if max(len(sums), len(uploads)) > 1 and group[0].actor in self.clients.actors:
                asked[i] = self.clients.call(group[0].actor, name, 3, len(sums), *sums, *uploads)
        answers = self.values([count for count, _, _ in asked.values()], f"the client actors ({name})")
        found: list[Collected] = []
        for i, answer in zip(asked, answers, strict=True):
            first = groups[i][0]
            if isinstance(answer, Exception):  # what it should have added is still in its node's store
                self.clients.replace(first.actor, answer, [])
            else:
                uploads = [asked[i][2]] if any(one.uploads for one in groups[i]) else []
                groups[i] = [Collected(first.actor, first.node, asked[i][1], uploads)]
        for group in groups:
            found += group
        return found
