"""A pass cut into work that idle actors pull: fixed groups, longest first, in chunks that shrink towards the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from raysim.engine.messages import Broadcast, States

NEXT = 0.005  # seconds from one call of an actor to its next within which it counts as never idle

Group = list[int]  # clients, or test batches, whose work goes together


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

    @property
    def name(self) -> str:
        """The name of the method, which Ray's dashboard shows for its calls."""
        return self.method.__name__

    @property
    def returns(self) -> int:
        """Values that the method returns: reports, uploads and states, or a single one."""
        return 3 if self.over_clients else 1

    def arguments(self, groups: list[Group]) -> tuple[Any, ...]:
        """What the method is called with for some of the groups."""
        states = None
        if self.states is not None:
            states = {k: self.states[k] for group in groups for k in group if k in self.states}
        return (self.broadcast, groups, states, *self.extra)

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
    rest: list[tuple[Any, ...]] = field(default_factory=list)  # references to the other return values, call by call
    sums: list[Any] = field(default_factory=list)  # references to each actor's sums
    calls: list[Call] = field(default_factory=list)


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
    """The groups of a pass that no actor has taken yet, longest first (of equals, the lowest first item)."""

    def __init__(self, groups: list[Group], costs: list[float], actors: int):
        self.actors = actors
        self.cost = {tuple(g): c for g, c in zip(groups, costs, strict=True)}
        self.waiting = deque(sorted(groups, key=lambda g: (-self.cost[tuple(g)], g[0])))
        self.left = float(sum(costs))

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def cost_of(self, groups: list[Group]) -> float:
        """The cost of some groups together; never 0."""
        return max(sum(self.cost[tuple(group)] for group in groups), 1e-9)

    def take(self, only_one: bool = False) -> list[Group]:
        """The next chunk: half an even share of what is left, so that the last chunks are small."""
        share = 0.0 if only_one else self.left / (2 * self.actors)
        chunk: list[Group] = []
        cost = 0.0
        while self.waiting and (not chunk or cost + self.cost[tuple(self.waiting[0])] <= share):
            group = self.waiting.popleft()
            chunk.append(group)
            cost += self.cost[tuple(group)]
        self.left -= cost
        return chunk

    def give_back(self, groups: list[Group]) -> None:
        """Return groups whose work was lost; they go first."""
        self.waiting.extendleft(reversed(groups))
        self.left += sum(self.cost[tuple(g)] for g in groups)
