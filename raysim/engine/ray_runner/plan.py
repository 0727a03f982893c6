"""The placement plan: how many client actors, on which GPU of which node, with what share. Made before any starts."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from raysim.config import RunConfig
from raysim.errors import PlanError
from raysim.settings import flag

SERVER_GPU = 0.1  # the server's share, out of the first GPU
ACTORS_PER_GPU = 2  # where nothing is known of the GPUs' memory, or it has room for more than the CPUs can feed
# Actors take turns on a GPU. Python needs microseconds for each of the 30 launches of a small model's step, and their
# kernels a fraction of that: so several actors pay, and beyond about eight only their contexts grow. Not measured yet.
MOST_PER_GPU = 8
# Measured: an actor that has imported torch takes about 190 MB of its own, and needs some more to work in.
ACTOR_BYTES = 400 * 2**20
FIXED_BYTES = 1000 * 2**20  # driver, server actor and Ray's own processes


@dataclass(frozen=True)
class Node:
    """What one machine of the cluster has."""

    id: str
    cpus: float
    gpus: int
    memory: int  # bytes Ray counts as usable
    gpu_type: str | None = None  # as Ray names it
    room: "Room | None" = None  # on its GPUs, where somebody looked


class Room(NamedTuple):
    """The memory of a node's GPUs, in bytes."""

    free: int  # on the fullest of them
    needed: int  # by a client actor: its CUDA context and what one client takes at its peak

    def __str__(self) -> str:
        return f"{self.needed / 2**30:.1f} of {self.free / 2**30:.1f}"


class Place(NamedTuple):
    """Where actors can go: a GPU of a node, or its CPUs."""

    node: str
    gpu: bool


@dataclass(frozen=True)
class Slot:
    """A place with the number of actors that are pinned to it."""

    node: str
    gpu: bool
    actors: int


@dataclass(frozen=True)
class Plan:
    """Where every actor goes. Actor i runs in slot `actor_slots[i]`; the server in slot 0."""

    slots: tuple[Slot, ...]
    actor_slots: tuple[int, ...]
    cpus_per_actor: float
    gpus_per_actor: float
    server_gpu: float
    memory_needed: int
    memory_there: int
    most: int  # client actors there may be when nodes join
    gpu_type: str | None = None  # of all GPUs that may be used, also on nodes that join
    room: Room | None = None  # on the GPUs with the least of it

    @property
    def actors(self) -> int:
        return len(self.actor_slots)

    def bundle(self, slot: Slot) -> dict[str, float]:
        """What a slot takes of its node."""
        return {"CPU": max(slot.actors * self.cpus_per_actor, 0.001)} | ({"GPU": 1} if slot.gpu else {})

    def total(self) -> dict[str, float]:
        """What the slots take together."""
        asked = {"CPU": round(sum(self.bundle(slot)["CPU"] for slot in self.slots), 2)}
        return asked | ({"GPU": len(self.slots)} if self.gpus_per_actor else {})

    def __str__(self) -> str:
        return self.describe()

    def describe(self) -> str:
        """The plan in a few lines, for people."""
        nodes = len({s.node for s in self.slots})
        per_slot = sorted({s.actors for s in self.slots})
        spread = f"{per_slot[0]}" if len(per_slot) == 1 else f"{per_slot[0]}-{per_slot[-1]}"
        place = "GPU" if self.slots[0].gpu else "node"
        share = f", {self.gpus_per_actor:g} GPU" if self.gpus_per_actor else ""
        server = f"{self.server_gpu:g} of the first GPU" if self.server_gpu else "CPU"
        return (
            f"{self.actors} client actors ({self.cpus_per_actor:g} CPU{share} each), {spread} per {place} "
            f"on {len(self.slots)} {place}{'s' * (len(self.slots) > 1)}, {nodes} node{'s' * (nodes > 1)}\n"
            f"server: {server}; memory: about {self.memory_needed / 2**30:.1f} of {self.memory_there / 2**30:.1f} GiB"
            + (f"; on a GPU: {per_slot[-1]} × {self.room} GiB free" if self.room else "")
        )


def of_type(nodes: list[Node], gpu_type: str | None) -> list[Node]:
    """The nodes whose GPUs are of this type; all of them where any will do."""
    return [n for n in nodes if gpu_type is None or (n.gpus and n.gpu_type == gpu_type)]


def truncate(share: float) -> float:
    """A share as Ray keeps it: four decimals, the rest cut off; cut here, so that the sum fits."""
    return math.floor(share * 10_000 + 1e-6) / 10_000


def make_plan(config: RunConfig, nodes: list[Node], client_bytes: int) -> Plan:
    """The plan for these nodes, or a PlanError with what was asked, what there is, and a setting that works.

    `client_bytes`: the largest client's samples as the actor holds them.
    """
    nodes = _checked(config, nodes)
    with_gpus = [n for n in nodes if n.gpus]
    used = with_gpus or [n for n in nodes if n.cpus] or nodes  # a head is often started with no CPUs on purpose
    places = [Place(n.id, bool(with_gpus)) for n in used for _ in range(n.gpus if with_gpus else 1)]
    active = config.active or config.clients
    per_gpu, room = _actors_per_gpu(config, with_gpus, client_bytes)
    default = per_gpu * len(places) if with_gpus else max(1, int(sum(n.cpus for n in used)))
    actors = config.clients if config.actor_per_client else config.actors or min(default, active)
    asked = f"--actor-per-client with {actors} clients" if config.actor_per_client else f"{actors} client actors"
    needed, memory = FIXED_BYTES + actors * (ACTOR_BYTES + client_bytes), sum(n.memory for n in used)
    if needed > memory:
        fit = max(0, (memory - FIXED_BYTES) // (ACTOR_BYTES + client_bytes))
        raise PlanError(
            f"{asked} need about {needed / 2**30:.1f} GiB of memory, {memory / 2**30:.1f} are there; "
            + (f"--actors {fit} works" if fit else "use a larger machine or fewer samples per client")
        )
    server_gpu = SERVER_GPU if with_gpus else 0.0
    share = _gpu_share(config, asked, actors, len(places), server_gpu)
    actor_slots = _deal_over_gpus(actors, len(places), share, server_gpu) if share else _deal_over_nodes(actors, used)
    per_node = {n.id: 0 for n in used}
    for slot in actor_slots:
        per_node[places[slot].node] += 1
    # Never more CPU than there is: asking for many actors slows them down, it does not make the plan impossible.
    cpus_per_actor = truncate(min([float(config.threads)] + [n.cpus / per_node[n.id] for n in used if per_node[n.id]]))
    counts = [actor_slots.count(i) for i in range(len(places))]
    last = max(i for i, c in enumerate(counts) if c or i == 0)
    return Plan(
        slots=tuple(Slot(place.node, place.gpu, c) for place, c in zip(places[: last + 1], counts, strict=False)),
        actor_slots=actor_slots,
        cpus_per_actor=cpus_per_actor,
        gpus_per_actor=share,
        server_gpu=server_gpu,
        memory_needed=int(needed),
        memory_there=int(memory),
        most=actors if config.actors or config.actor_per_client else active,
        gpu_type=config.gpu_type,
        room=room,
    )


def _checked(config: RunConfig, nodes: list[Node]) -> list[Node]:
    """The nodes that may be used; a PlanError if the configuration asks for GPUs that are not there."""
    for key in ("gpu_type", "actors_per_gpu", "gpu_fraction"):
        if getattr(config, key) is not None and not any(n.gpus for n in nodes):
            raise PlanError(f"{flag(key)} was asked for and the cluster has no GPU; leave it out to run on CPUs")
    if not (chosen := of_type(nodes, config.gpu_type)):
        there = ", ".join(sorted({n.gpu_type or "unnamed" for n in nodes if n.gpus}))
        raise PlanError(f"--gpu-type {config.gpu_type}: the cluster has none; its GPUs are {there}")
    return chosen


def _actors_per_gpu(config: RunConfig, nodes: list[Node], client_bytes: int) -> tuple[int, Room | None]:
    """How many actors go on every GPU unless their number is given, and the room on the fullest."""
    rooms = [Room(n.room.free, n.room.needed + client_bytes) for n in nodes if n.room]
    tightest = min(rooms, key=lambda room: room.free / room.needed, default=None)
    if config.actors_per_gpu or tightest is None:
        return config.actors_per_gpu or ACTORS_PER_GPU, tightest
    fit = int((1 - SERVER_GPU) * tightest.free / tightest.needed)
    fed = max(ACTORS_PER_GPU, int(min(n.cpus / n.gpus for n in nodes)))
    return max(1, min(fit, fed, MOST_PER_GPU)), tightest


def _gpu_share(config: RunConfig, asked: str, actors: int, gpus: int, server_gpu: float) -> float:
    """The share of a GPU that every client actor gets; 0 on clusters without GPUs."""
    if not server_gpu:
        return 0.0
    if config.gpu_fraction is None:
        # The same share everywhere; lowered so that the fullest GPU also holds the server.
        share = truncate((1 - server_gpu) / math.ceil(actors / gpus))
    else:
        share = truncate(config.gpu_fraction)
        capacity = sum(_rooms(gpus, share, server_gpu))
        if actors > capacity:
            works = f"--actors {capacity}" if capacity else f"--gpu-fraction {1 - server_gpu:g}"
            raise PlanError(
                f"{asked} × {share:g} GPU and {server_gpu:g} for the server do not fit on {gpus} GPUs; "
                f"{works} works, or leave --gpu-fraction out"
            )
    if share <= 0:
        raise PlanError(f"{asked} on {gpus} GPUs is below Ray's smallest share; use fewer --actors")
    return share


def _rooms(gpus: int, share: float, server_gpu: float) -> list[int]:
    """How many actors each GPU holds; the first one also holds the server."""
    return [int((1 - server_gpu * (i == 0)) / share + 1e-9) for i in range(gpus)]


def _deal_over_gpus(actors: int, gpus: int, share: float, server_gpu: float) -> tuple[int, ...]:
    """The GPU of each actor: evenly, one after the other."""
    room = _rooms(gpus, share, server_gpu)
    chosen: list[int] = []
    while len(chosen) < actors:
        for i in range(gpus):
            if len(chosen) < actors and chosen.count(i) < room[i]:
                chosen.append(i)
    return tuple(chosen)


def _deal_over_nodes(actors: int, nodes: list[Node]) -> tuple[int, ...]:
    """The node of each actor, on clusters without GPUs: each next one where a CPU is freest."""
    held = [0] * len(nodes)
    chosen: list[int] = []
    for _ in range(actors):
        i = min(range(len(nodes)), key=lambda i: ((held[i] + 1) / max(nodes[i].cpus, 0.001), i))
        held[i] += 1
        chosen.append(i)
    return tuple(chosen)
