"""A pass cut into work that idle actors pull: fixed groups, longest first, in chunks that shrink towards the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

from raysim.engine.messages import Broadcast, Reports, States

NEXT = 0.005  # seconds from one call of an actor to its next within which it counts as never idle

Group = list[int]  # clients, or test batches, whose work goes together

ALIKE = 1.5  # actors whose speeds differ by less are alike: those of one kind differ by chance
CALL_SECONDS = 0.0005  # that a call costs the driver, roughly: to hand it out and to take its answer


@dataclass(frozen=True)
class Pace:
    """How fast actors have been in earlier passes."""

    speeds: dict[int, float] = field(default_factory=dict)  # actor -> its speed, where the mean of all is 1
    seconds: float = 0.0  # per unit of cost, at that mean; 0 where nothing is known

    def of(self, actor: int) -> float:
        """An actor's speed; one that is not known is as fast as the mean."""
        return self.speeds.get(actor, 1.0)

    def fastest(self) -> float:
        return max(self.speeds.values(), default=1.0)

    def alike(self) -> bool:
        """Whether the actors are known to be about equally fast."""
        return bool(self.speeds) and self.fastest() < ALIKE * min(self.speeds.values())

    def least(self, actors: int) -> float:
        """The cost of a call that lasts until the driver has served all other actors: smaller ones would make it late.

        0 where nothing is known.
        """
        return actors * CALL_SECONDS / self.seconds if self.seconds else 0.0


@dataclass
class Pass:
    """One pass over clients or test batches: which method of the client actors runs on which groups."""

    method: Callable[..., Any]  # of engine/worker.py's WorkerCalls
    broadcast: Broadcast
    groups: list[Group]
    costs: list[float]  # of each group, to balance the actors
    extra: tuple[Any, ...] = ()  # further arguments of the method
    states: States | None = None  # the states of the clients; None for passes that have none
    over_clients: bool = False  # whether groups are of clients whose work the actors add up, to collect afterwards
    pace: Pace = field(default_factory=Pace)  # of the actors

    @property
    def name(self) -> str:
        """The name of the method, which Ray's dashboard shows for its calls."""
        return self.method.__name__

    @property
    def kind(self) -> str:
        """The method, and for an exchange its part: passes of the same kind cost alike."""
        return " ".join([self.name, *(one for one in self.extra if isinstance(one, str))])

    @property
    def returns(self) -> int:
        """Values that the method returns: reports, uploads and states, or a single one."""
        return 3 if self.over_clients else 1

    def arguments(self, groups: list[Group]) -> tuple[Any, ...]:
        """What the method is called with for some of the groups."""
        clients = [k for group in groups for k in group]
        states, broadcast = None, self.broadcast
        if self.states is not None:
            states = {k: self.states[k] for k in clients if k in self.states} if self.states else {}
        if broadcast.route:  # of all clients of the pass: no call needs more than its own
            broadcast = replace(broadcast, route={k: broadcast.route[k] for k in clients if k in broadcast.route})
        return (broadcast, groups, states, *self.extra)

    def without(self, clients: Container[int]) -> Pass:
        """The same pass over the other clients."""
        groups = [[k for k in group if k not in clients] for group in self.groups]
        left = [(group, cost) for group, cost in zip(groups, self.costs, strict=True) if group]
        return replace(self, groups=[group for group, _ in left], costs=[cost for _, cost in left])


class Call(NamedTuple):
    """When an actor was at work, by the driver's monotonic clock."""

    actor: int
    began: float
    ended: float
    lost: bool = False  # whether the actor was lost, and with it what it did


@dataclass
class Answers:
    """What the calls of a pass returned, in no particular order."""

    first: list[Any] = field(default_factory=list)  # the small first return value of each call
    actors: list[int] = field(default_factory=list)  # the actor of each call
    states: list[Any] = field(default_factory=list)  # references to the clients' states, call by call
    uploads: list[Any] = field(default_factory=list)  # references to what the clients sent client by client
    sums: list[Any] = field(default_factory=list)  # references to sums over them all
    calls: list[Call] = field(default_factory=list)

    @cached_property
    def reports(self) -> Reports:
        """Of a pass over clients: what all calls reported. Nothing that is made of it depends on who worked where."""
        return Reports.joined(self.first)


def spans(phases: dict[str, list[Call]], origin: float) -> dict[str, list[list[Any]]]:
    """When each actor worked in each phase, as [actor, from, to] in seconds after `origin`.

    Calls of an actor that follow at once are joined. What lost actors did is a phase of its own, `lost`.
    """
    found: dict[str, list[list[Any]]] = {}
    for phase, calls in phases.items():
        last: dict[tuple[str, int], list[Any]] = {}
        for call in sorted(calls, key=lambda call: call.began):
            began, ended = round(call.began - origin, 4), round(call.ended - origin, 4)
            name = "lost" if call.lost else phase
            span = last.get((name, call.actor))
            if span and began - span[2] <= NEXT:
                span[2] = ended
            else:
                span = last[name, call.actor] = [call.actor, began, ended]
                found.setdefault(name, []).append(span)
    return found


def in_groups(items: list[int], size: int) -> list[Group]:
    """Consecutive items in fixed groups: by the configuration only, never by actor."""
    return [items[i : i + size] for i in range(0, len(items), size)]


class WorkQueue:
    """The groups of a pass that no actor has taken yet, longest first (equals in the order given)."""

    def __init__(self, groups: list[Group], costs: list[float]):
        self.cost = {group[0]: cost for group, cost in zip(groups, costs, strict=True)}  # by a group's first item
        by_cost = sorted(zip(costs, groups, strict=True), key=itemgetter(0), reverse=True)
        self.waiting = deque(group for _, group in by_cost)
        self.total = self.left = self.to_deal = float(sum(costs))
        self.dealt = 0.0  # shares of `to_deal` that actors have got
        self.suspects: set[int] = set()  # first items of groups that were being worked on when an actor was lost

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def cost_of(self, groups: list[Group]) -> float:
        """The cost of some groups together; never 0."""
        return max(sum(self.cost[group[0]] for group in groups), 1e-9)

    def next_cost(self) -> float:
        """The cost of the group that is next."""
        return self.cost[self.waiting[0][0]]

    def take(self, share: float, least: float = 0.0, alike: bool = False) -> list[Group]:
        """The next chunk, for an actor whose share of all work this is: at least one group.

        Half of its share of what was left when all had got one, or four fifths where actors are known to be `alike`:
        so the last chunks are small. But not below `least`, unless that is more than the actor's share of everything.
        """
        if self.dealt + share > 1 + 1e-9:
            self.dealt, self.to_deal = 0.0, self.left
        self.dealt += share
        part = 0.8 if alike else 0.5
        most = max(self.to_deal * share * part, min(least, self.total * share)) * (1 + 1e-9)
        chunk: list[Group] = []
        cost = 0.0
        while self.waiting and (not chunk or cost + self.next_cost() <= most):
            if chunk and self.suspects & {chunk[0][0], self.waiting[0][0]}:
                break
            group = self.waiting.popleft()
            chunk.append(group)
            cost += self.cost[group[0]]
        self.left -= cost
        return chunk

    def give_back(self, groups: list[Group], suspects: list[Group]) -> None:
        """Return groups whose work was lost; they go first. Each suspect goes alone: it may have been the cause."""
        self.suspects.update(group[0] for group in suspects)
        self.waiting.extendleft(reversed(groups))
        self.left += sum(self.cost[group[0]] for group in groups)
        self.dealt, self.to_deal = 0.0, self.left
