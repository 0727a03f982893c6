"""Where a run's actors live: a placement group on every node of the plan; nodes may leave and join."""

import importlib
from collections.abc import Iterator

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raysim.engine.cluster import nodes
from raysim.engine.plan import Node, Plan, Slot
from raysim.errors import PlanError

PLACEMENT_SECONDS = 20


class _Host:
    """Holds a Worker or a Server. Imports it in the actor's own process: the driver needs no torch."""

    def __init__(self, module: str, kind: str, federation):
        self.held = getattr(importlib.import_module(module), kind)(federation)

    def call(self, method: str, *arguments):
        return getattr(self.held, method)(*arguments)


@ray.remote(num_cpus=0)
class ServerActor(_Host):
    """The server of a run."""


@ray.remote(num_cpus=0)
class ClientActor(_Host):
    """Hosts whichever clients it is given."""


class Places:
    """The plan as it is on the cluster. Actors have numbers that are never given again."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.slots: list[Slot] = []
        self.bundle: list[int] = []  # slot -> its bundle in its node's placement group
        self.slot: dict[int, int] = {}  # actor -> slot
        self.server_slot = 0
        self.groups: dict[str, object] = {}  # node -> placement group
        self.next_actor = 0

    def reserve(self) -> None:
        """Take the plan's place in the cluster, or say that there is none."""
        for node in dict.fromkeys(slot.node for slot in self.plan.slots):
            self._take(node, [slot for slot in self.plan.slots if slot.node == node])
        self.slot = dict(enumerate(self.plan.actor_slots))
        self.next_actor = self.plan.actors
        if not all(group.wait(PLACEMENT_SECONDS) for group in self.groups.values()):
            free = {k: round(v, 2) for k, v in sorted(ray.available_resources().items()) if k in ("CPU", "GPU")}
            self.release()
            raise PlanError(
                f"no room for {self.plan.actors} client actors within {PLACEMENT_SECONDS} s: asked for "
                f"{self.plan.total()}, free {free or 'nothing'}; wait for other jobs, or use fewer --actors"
            )

    def release(self) -> None:
        """Give everything back to the cluster."""
        for group in self.groups.values():
            remove_placement_group(group)
        self.groups = {}

    def start_server(self, federation):
        options = {"num_gpus": self.plan.server_gpu, "scheduling_strategy": self._strategy(self.server_slot)}
        return ServerActor.options(**options).remote("raysim.engine.server", "Server", federation)

    def start_actor(self, actor: int, federation):
        return ClientActor.options(
            num_cpus=self.plan.cpus_per_actor,
            num_gpus=self.plan.gpus_per_actor,
            scheduling_strategy=self._strategy(self.slot[actor]),
        ).remote("raysim.engine.worker", "Worker", federation)

    def changes(self) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """Nodes that are gone with the actors they had, and new ones with the actors they are to have."""
        alive = {node.id: node for node in nodes()}
        lost: dict[str, list[int]] = {}
        for node in [node for node in self.groups if node not in alive]:
            remove_placement_group(self.groups.pop(node))
            lost[node] = [actor for actor, slot in self.slot.items() if self.slots[slot].node == node]
            for actor in lost[node]:
                del self.slot[actor]
        joined = {}
        for node in [node for node in alive.values() if node.id not in self.groups]:
            if found := list(self._room_on(node)):
                joined[node.id] = self._settle(node.id, found)
        return lost, joined

    def move_server(self) -> int | None:
        """To a node that is there, if its own is not. Gives a client actor that has to make room, if one has to."""
        if self.slots[self.server_slot].node in self.groups:
            return None
        there = [i for i, slot in enumerate(self.slots) if slot.node in self.groups]
        share, server = self.plan.gpus_per_actor, self.plan.server_gpu
        held = {i: [actor for actor, slot in self.slot.items() if slot == i] for i in there}
        roomy = [i for i in there if len(held[i]) * share + server <= 1 + 1e-9]
        self.server_slot = (roomy or there)[0]
        if roomy:
            return None
        evicted = held[self.server_slot][-1]
        del self.slot[evicted]
        return evicted

    # -- inside ------------------------------------------------------------------------------------------------------

    def _take(self, node: str, slots: list[Slot]) -> None:
        selector = [{"ray.io/node-id": node}] * len(slots)
        self.groups[node] = placement_group([self.plan.bundle(s) for s in slots], bundle_label_selector=selector)
        self.bundle += range(len(slots))
        self.slots += slots

    def _room_on(self, node: Node) -> Iterator[Slot]:
        """Slots for a node that joins: of actors as the plan has them, no more than are wanted in all."""
        left = self.plan.most - len(self.slot)
        if self.plan.gpus_per_actor:
            rooms = [int(1 / self.plan.gpus_per_actor + 1e-9)] * node.gpus
        else:
            rooms = [int(node.cpus / self.plan.cpus_per_actor + 1e-9)]
        for room in rooms:
            if min(room, left) > 0:
                yield Slot(node.id, self.plan.gpus_per_actor > 0, min(room, left))
                left -= min(room, left)

    def _settle(self, node: str, slots: list[Slot]) -> list[int]:
        """Take the place for them; the new actors' numbers."""
        first = len(self.slots)
        self._take(node, slots)
        placed = [first + i for i, slot in enumerate(slots) for _ in range(slot.actors)]
        new = list(range(self.next_actor, self.next_actor + len(placed)))
        self.slot |= dict(zip(new, placed, strict=True))
        self.next_actor += len(new)
        return new

    def _strategy(self, slot: int) -> PlacementGroupSchedulingStrategy:
        group = self.groups[self.slots[slot].node]
        return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=self.bundle[slot])
