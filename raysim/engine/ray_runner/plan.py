"""The placement plan: how many client actors, on which GPU of which node, with what share. Made before any starts."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from raysim.config import RunConfig
from raysim.errors import PlanError

SERVER_GPU = 0.1  # the server's share, out of the first GPU
ACTORS_PER_GPU = 2
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
        )


def truncate(share: float) -> float:
    """A share as Ray keeps it: four decimals, the rest cut off; cut here, so that the sum fits."""
    return math.floor(share * 10_000 + 1e-6) / 10_000


def make_plan(config: RunConfig, nodes: list[Node], client_bytes: int) -> Plan:
    """The plan for these nodes, or a PlanError with what was asked, what there is, and a setting that works.

    `client_bytes`: the largest client's samples as the actor holds them.
    """
    with_gpus = [n for n in nodes if n.gpus]
    used = with_gpus or [n for n in nodes if n.cpus] or nodes  # a head is often started with no CPUs on purpose
    places = [Place(n.id, bool(with_gpus)) for n in used for _ in range(n.gpus if with_gpus else 1)]
    active = config.active or config.clients
    default = ACTORS_PER_GPU * len(places) if with_gpus else max(1, int(sum(n.cpus for n in used)))
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
    )


def _gpu_share(config: RunConfig, asked: str, actors: int, gpus: int, server_gpu: float) -> float:
    """The share of a GPU that every client actor gets; 0 on clusters without GPUs."""
    if not server_gpu:
        if config.gpu_fraction is not None:
            raise PlanError("--gpu-fraction was asked for and the cluster has no GPU; leave it out to run on CPUs")
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
