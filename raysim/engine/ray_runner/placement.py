"""Where a run's actors live: a placement group on every node of the plan; nodes may leave and join."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raysim.engine.ray_runner.actors import SERVER, WORKER, ClientActor, ServerActor
from raysim.engine.ray_runner.cluster import actor_options, nodes
from raysim.engine.ray_runner.plan import Node, Plan, Slot, of_type
from raysim.errors import PlanError

PLACEMENT_SECONDS = 20


class Placement:
    """The plan as it is on the cluster. A client actor's number is never used for another one.

    `run` is the name the dashboard shows; without `metrics` the actors report none.
    """

    def __init__(self, plan: Plan, run: str = "run", metrics: bool = True):
        self.plan, self.run, self.metrics = plan, run, metrics
        self.namespace = f"raysim/{run}/{secrets.token_hex(4)}"  # of the actors' names: no other run has it
        self.starts: dict[str, int] = {}  # actor's name -> how often it was started
        self.slots: list[Slot] = []
        self.bundle: list[int] = []  # slot -> its bundle in its node's placement group
        self.slot: dict[int, int] = {}  # actor -> slot
        self.server_slot = 0
        self.groups: dict[str, Any] = {}  # node -> placement group
        self.next_actor = 0

    def reserve(self) -> None:
        """Take the plan's place in the cluster; a PlanError if there is no room."""
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

    def start_server(self, config: Any, data: Any) -> Any:
        """A new server actor; config and data are references."""
        name = self._name("server", f"gpu {self.plan.server_gpu:g}" if self.plan.server_gpu else "cpu")
        return ServerActor.options(  # type: ignore[attr-defined]
            name=name,
            namespace=self.namespace,
            num_gpus=self.plan.server_gpu,
            **actor_options(),
            scheduling_strategy=self._strategy(self.server_slot),
        ).remote(SERVER, config, data, name)

    def start_client_actor(self, actor: int, config: Any, data: Any) -> Any:
        """A new client actor with this number; config and data are references."""
        cpus, gpus = self.plan.cpus_per_actor, self.plan.gpus_per_actor
        name = self._name(f"client-actor-{actor}", f"gpu {gpus:g}" if gpus else f"cpu {cpus:g}")
        return ClientActor.options(  # type: ignore[attr-defined]
            name=name,
            namespace=self.namespace,
            num_cpus=cpus,
            num_gpus=gpus,
            **actor_options(),
            scheduling_strategy=self._strategy(self.slot[actor]),
        ).remote(WORKER, config, data, name, self.run if self.metrics else None, gpus)

    def node_of(self, actor: int) -> str:
        """The node on which a client actor is."""
        return self.slots[self.slot[actor]].node

    def changes(self) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """Nodes that are gone, with the actors they had, and nodes that have joined, with the actors they get."""
        alive = {node.id: node for node in nodes()}
        lost: dict[str, list[int]] = {}
        for node in [node for node in self.groups if node not in alive]:
            remove_placement_group(self.groups.pop(node))
            lost[node] = [actor for actor, slot in self.slot.items() if self.slots[slot].node == node]
            for actor in lost[node]:
                del self.slot[actor]
        joined = {}
        for new in of_type([node for node in alive.values() if node.id not in self.groups], self.plan.gpu_type):
            if found := list(self._room_on(new)):
                joined[new.id] = self._settle(new.id, found)
        return lost, joined

    def move_server(self) -> int | None:
        """Move the server if its node is gone; returns the client actor that has to make room, if one has to."""
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

    def neighbour_of_server(self) -> int | None:
        """A client actor on the server's GPU that it can do without; None if there is no other actor left."""
        there = [actor for actor, slot in self.slot.items() if slot == self.server_slot]
        if not there or len(self.slot) < 2:
            return None
        del self.slot[there[-1]]
        return there[-1]

    # -- inside ------------------------------------------------------------------------------------------------------

    def _name(self, who: str, share: str) -> str:
        """An actor's name on the dashboard. Ray frees a name late, so an actor that is started again gets another."""
        start = self.starts[who] = self.starts.get(who, 0) + 1
        return f"{who} {share}" + (f" · start {start}" if start > 1 else "")

    def _take(self, node: str, slots: list[Slot]) -> None:
        selector = [{"ray.io/node-id": node}] * len(slots)
        self.groups[node] = placement_group(
            [self.plan.bundle(s) for s in slots], name=f"{self.namespace}/{node[:8]}", bundle_label_selector=selector
        )
        self.bundle += range(len(slots))
        self.slots += slots

    def _room_on(self, node: Node) -> Iterator[Slot]:
        """Slots on a node that joins, for actors like those of the plan, no more than are wanted in all."""
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
        """Take the place for these slots; returns the new actors' numbers."""
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
