"""A pass cut into work that idle actors pull: fixed groups, longest first, in chunks that shrink towards the end."""

from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field, replace
from typing import NamedTuple

NEXT = 0.005  # seconds from one call of an actor to its next within which it counts as never idle


@dataclass
class Pass:
    """One pass over clients or test batches: which method every actor runs, on which groups."""

    method: str  # of Worker
    broadcast: object
    groups: list[list[int]]
    costs: list[float]
    extra: tuple = ()  # further arguments of the method
    states: dict[int, object] | None = None  # client -> reference; None for passes that have none
    summed: bool = False  # whether the actors add up something to collect afterwards
    returns: int = 1

    def arguments(self, groups: list[list[int]]) -> tuple:
        """What the method is called with for some of the groups."""
        if self.states is None:
            return (self.broadcast, groups, *self.extra)
        held = {k: self.states[k] for group in groups for k in group if k in self.states}
        return (self.broadcast, groups, held, *self.extra)

    def without(self, clients: Container[int]) -> "Pass":
        """The same for the others."""
        groups = [[k for k in group if k not in clients] for group in self.groups]
        left = [(group, cost) for group, cost in zip(groups, self.costs, strict=True) if group]
        return replace(self, groups=[group for group, _ in left], costs=[cost for _, cost in left])


class Call(NamedTuple):
    """When an actor was at work, by the driver's monotonic clock."""

    actor: int
    began: float
    ended: float
    lost: bool = False  # whether the actor was, with what it did


@dataclass
class Answers:
    """What a pass gave, in no particular order."""

    first: list = field(default_factory=list)  # the small first return value of each call
    rest: list[tuple] = field(default_factory=list)  # references to the other return values, call by call
    sums: list = field(default_factory=list)  # references to each actor's sums
    calls: list[Call] = field(default_factory=list)


def spans(phases: dict[str, list[Call]], origin: float) -> dict[str, list[list]]:
    """Phase -> [actor, from, to] in seconds after `origin`; calls of an actor that follow at once are one.

    What lost actors did is a phase of its own, `lost`.
    """
    found: dict[str, list[list]] = {}
    for phase, calls in phases.items():
        last: dict[tuple[str, int], list] = {}
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


def in_groups(items: list[int], size: int) -> list[list[int]]:
    """Consecutive items in fixed groups: by the configuration only, never by actor."""
    return [items[i : i + size] for i in range(0, len(items), size)]


class Queue:
    """Groups not yet handed out, longest first (ties: lowest first item)."""

    def __init__(self, groups: list[list[int]], costs: list[float], actors: int):
        self.actors = actors
        self.cost = {tuple(g): c for g, c in zip(groups, costs, strict=True)}
        self.waiting = deque(sorted(groups, key=lambda g: (-self.cost[tuple(g)], g[0])))
        self.left = float(sum(costs))

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def cost_of(self, groups: list[list[int]]) -> float:
        return max(sum(self.cost[tuple(group)] for group in groups), 1e-9)

    def take(self, only_one: bool = False) -> list[list[int]]:
        """The next chunk: half an even share of what is left, so that the last chunks are small."""
        share = 0.0 if only_one else self.left / (2 * self.actors)
        chunk, cost = [], 0.0
        while self.waiting and (not chunk or cost + self.cost[tuple(self.waiting[0])] <= share):
            group = self.waiting.popleft()
            chunk.append(group)
            cost += self.cost[tuple(group)]
        self.left -= cost
        return chunk

    def give_back(self, groups: list[list[int]]) -> None:
        """Groups whose work was lost go first."""
        self.waiting.extendleft(reversed(groups))
        self.left += sum(self.cost[tuple(g)] for g in groups)
