"""Examines the cluster that this process is connected to: what Ray has, and a self-test on every device."""

from __future__ import annotations

import os
import platform
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysim.engine.ray_runner.actors import show_only
from raysim.engine.ray_runner.cluster import nodes
from raysim.engine.ray_runner.lifecycle import first_line

SECONDS = 180  # for one device: a first start of CUDA takes its time


@ray.remote(num_cpus=0, max_retries=0)
def _examine(node: str, gpu: bool) -> Any:
    gpus = [str(one) for one in ray.get_gpu_ids()]
    show_only(gpus)
    from raysim.engine.self_test import examine  # after the GPUs are hidden, since it imports torch

    return examine(node, ",".join(gpus) if gpu else None)


def cluster_facts() -> list[str]:
    """What Ray says of the cluster, a line each."""
    total = ray.cluster_resources()
    stores = sum(node["Resources"].get("object_store_memory", 0) for node in ray.nodes() if node["Alive"])
    return [
        f"Ray {ray.__version__}, Python {platform.python_version()}: {len(nodes())} nodes, "
        f"{total.get('CPU', 0):g} CPUs, {total.get('GPU', 0):g} GPUs",
        f"object store: {stores / 2**30:.1f} GiB; memory: {total.get('memory', 0) / 2**30:.1f} GiB",
        "token: " + ("on" if os.environ.get("RAY_AUTH_MODE") == "token" else "off: who reaches its ports can use it"),
    ]


def examine_devices() -> tuple[list[Any], list[str]]:
    """What was found of every GPU, or of the CPUs of nodes without, and which devices could not be examined."""
    asked = {}
    for node in nodes():
        for _ in range(max(1, node.gpus)):
            where = NodeAffinitySchedulingStrategy(node.id, soft=False)
            task = _examine.options(num_gpus=1 if node.gpus else 0, scheduling_strategy=where)
            asked[task.remote(node.id, bool(node.gpus))] = node.id
    found, failed = [], []
    for reference, node_id in asked.items():
        try:
            found.append(ray.get(reference, timeout=SECONDS))
        except RayError as error:
            failed.append(f"a device of node {node_id[:8]} could not be examined: {first_line(error)}")
    return found, failed
