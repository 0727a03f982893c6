"""The placement plan: how many client actors, on which GPU of which node, with what share. Made before any starts."""

import math
from dataclasses import dataclass

from raysim.config import RunConfig
from raysim.errors import PlanError

SERVER_GPU = 0.1  # the server's share, out of the first GPU
ACTORS_PER_GPU = 2
# Measured (shared FACTS): an actor that has imported torch takes about 190 MB of its own, and works in some more.
ACTOR_BYTES = 400 * 2**20
FIXED_BYTES = 1000 * 2**20  # driver, server actor and Ray's own processes


@dataclass(frozen=True)
class Node:
    """What one machine of the cluster has."""

    id: str
    cpus: float
    gpus: int
    memory: int  # bytes Ray counts as usable


@dataclass(frozen=True)
class Slot:
    """A place actors are pinned to: one GPU, or the CPUs of a node without any."""

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

    def describe(self) -> str:
        """For people, in a few lines."""
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
    """Ray keeps four decimals and cuts the rest; cut first, so that the sum fits."""
    return math.floor(share * 10_000 + 1e-6) / 10_000


def make_plan(config: RunConfig, nodes: list[Node], client_bytes: int) -> Plan:
    """The plan for these nodes, or a PlanError with what was asked, what is there, and a setting that works.

    `client_bytes`: the largest client's samples as the actor holds them.
    """
    with_gpus = [n for n in nodes if n.gpus]
    used = with_gpus or [n for n in nodes if n.cpus] or nodes  # a head is often started with no CPUs on purpose
    places = [(n.id, bool(with_gpus)) for n in used for _ in range(n.gpus if with_gpus else 1)]
    cpus = sum(n.cpus for n in used)
    default = ACTORS_PER_GPU * len(places) if with_gpus else max(1, int(cpus))
    actors = config.clients if config.actor_per_client else config.actors or min(default, config.active)
    asked = f"--actor-per-client with {actors} clients" if config.actor_per_client else f"{actors} client actors"

    memory_there = sum(n.memory for n in used)
    memory_needed = FIXED_BYTES + actors * (ACTOR_BYTES + client_bytes)
    if memory_needed > memory_there:
        fit = max(0, (memory_there - FIXED_BYTES) // (ACTOR_BYTES + client_bytes))
        raise PlanError(
            f"{asked} need about {memory_needed / 2**30:.1f} GiB of memory, {memory_there / 2**30:.1f} are there; "
            + (f"--actors {fit} works" if fit else "use a larger machine or fewer samples per client")
        )

    server_gpu = SERVER_GPU if with_gpus else 0.0
    if with_gpus:
        if config.gpu_fraction is None:
            # The same share everywhere; lowered so that the fullest GPU also holds the server.
            share = truncate((1 - server_gpu) / math.ceil(actors / len(places)))
        else:
            share = truncate(config.gpu_fraction)
            capacity = sum(int((1 - server_gpu * (i == 0)) / share + 1e-9) for i in range(len(places)))
            if actors > capacity:
                works = f"--actors {capacity}" if capacity else f"--gpu-fraction {1 - server_gpu:g}"
                raise PlanError(
                    f"{asked} × {share:g} GPU and {server_gpu:g} for the server do not fit on {len(places)} GPUs; "
                    f"{works} works, or leave --gpu-fraction out"
                )
        if share <= 0:
            raise PlanError(f"{asked} on {len(places)} GPUs is below Ray's smallest share; use fewer --actors")
    elif config.gpu_fraction is not None:
        raise PlanError("--gpu-fraction was asked for and the cluster has no GPU; leave it out to run on CPUs")
    else:
        share = 0.0

    actor_slots = _deal(actors, places, used, share, server_gpu)
    per_node = {n.id: 0 for n in used}
    for slot in actor_slots:
        per_node[places[slot][0]] += 1
    # Never more CPU than there is: asking for many actors slows them down, it does not make the plan impossible.
    cpus_per_actor = truncate(min([float(config.threads)] + [n.cpus / per_node[n.id] for n in used if per_node[n.id]]))
    counts = [actor_slots.count(i) for i in range(len(places))]
    last = max(i for i, c in enumerate(counts) if c or i == 0)
    slots = tuple(Slot(node, gpu, c) for (node, gpu), c in zip(places[: last + 1], counts, strict=False))
    most = actors if config.actors or config.actor_per_client else config.active
    return Plan(slots, actor_slots, cpus_per_actor, share, server_gpu, int(memory_needed), int(memory_there), most)


def _deal(actors: int, places, nodes: list[Node], share: float, server_gpu: float) -> tuple[int, ...]:
    """Actor -> place: evenly over GPUs; over nodes without GPUs, each next actor where a CPU is freest."""
    if share:
        room = [int((1 - server_gpu * (i == 0)) / share + 1e-9) for i in range(len(places))]
        chosen = []
        while len(chosen) < actors:
            for i in range(len(places)):
                if len(chosen) < actors and chosen.count(i) < room[i]:
                    chosen.append(i)
        return tuple(chosen)
    held = [0] * len(nodes)
    chosen = []
    for _ in range(actors):
        i = min(range(len(nodes)), key=lambda i: ((held[i] + 1) / max(nodes[i].cpus, 0.001), i))
        held[i] += 1
        chosen.append(i)
    return tuple(chosen)
