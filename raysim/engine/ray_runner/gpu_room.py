"""Looks at the memory of the cluster's GPUs where the number of actors is to follow from it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysim.engine.ray_runner.actors import show_only
from raysim.engine.ray_runner.cluster import actor_options
from raysim.engine.ray_runner.plan import Node, Room, of_type
from raysim.training.drivers import machine_has_gpu

if TYPE_CHECKING:
    from raysim.config import RunConfig

SECONDS = 60.0  # to wait for an answer: a GPU may be somebody else's now, and CUDA takes its time to start


@ray.remote(num_cpus=0, num_gpus=1, max_calls=1, max_retries=0)  # one call, so that its memory is free again
def _look(config: RunConfig, shape: tuple[int, int, int], classes: int) -> Any:
    show_only([str(gpu) for gpu in ray.get_gpu_ids()])
    if not machine_has_gpu():
        return None
    from raysim.engine.gpu_memory import measure  # after the GPUs are hidden, since it imports torch

    return measure(config, shape, classes)


def with_room(config: RunConfig, nodes: list[Node], shape: tuple[int, int, int], classes: int) -> list[Node]:
    """The nodes with the room on their GPUs, if the configuration leaves it to them how many actors there are.

    It stays unknown where Ray's GPUs are logical or nobody answers: what is wrong there shows when actors start.
    """
    decided = (config.actors, config.actors_per_gpu, config.gpu_fraction, config.actor_per_client or None)
    if any(value is not None for value in decided):
        return nodes
    asked: dict[Any, str] = {}
    here = ray.get_runtime_context().get_node_id()
    for node in of_type(nodes, config.gpu_type):
        if node.id == here and not machine_has_gpu():  # known without the processes that it would take to ask
            continue
        where = NodeAffinitySchedulingStrategy(node.id, soft=False)
        look = _look.options(scheduling_strategy=where, **actor_options())
        asked |= {look.remote(config, shape, classes): node.id for _ in range(node.gpus)}
    rooms: dict[str, list[Room]] = {}
    for reference, room in _answers(list(asked)):
        if room is not None:
            rooms.setdefault(asked[reference], []).append(room)
    return [replace(node, room=_tightest(rooms[node.id])) if node.id in rooms else node for node in nodes]


def _answers(asked: list[Any]) -> list[tuple[Any, Room | None]]:
    """What has been answered in time."""
    if not asked:
        return []
    done, late = ray.wait(asked, num_returns=len(asked), timeout=SECONDS)
    for reference in late:
        ray.cancel(reference, force=True)
    found = []
    for reference in done:
        try:
            found.append((reference, ray.get(reference)))
        except RayError:  # such as a torch that does not fit the driver: actors will say the same, and end the run
            continue
    return found


def _tightest(rooms: list[Room]) -> Room:
    """What is safe on all GPUs of a node."""
    return Room(min(room.free for room in rooms), max(room.needed for room in rooms))
