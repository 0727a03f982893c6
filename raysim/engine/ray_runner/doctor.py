"""Examines the cluster that this process is connected to: what Ray has, and a self-test on every device."""

from __future__ import annotations

import os
import platform
import random
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysim.engine.ray_runner.actors import show_only
from raysim.engine.ray_runner.cluster import nodes
from raysim.engine.ray_runner.lifecycle import first_line

SECONDS = 180  # for one device: a first start of CUDA takes its time
TRANSFER_SECONDS = 30  # for one object
OBJECT_BYTES = 2**20  # large enough to go through the object stores


@ray.remote(num_cpus=0, max_retries=0)
def _examine(node: str, gpu: bool) -> Any:
    gpus = [str(one) for one in ray.get_gpu_ids()]
    show_only(gpus)
    from raysim.engine.self_test import examine  # after the GPUs are hidden, since it imports torch

    return examine(node, ",".join(gpus) if gpu else None)


@ray.remote(num_cpus=0, max_retries=0)
def _give(seed: int) -> bytes:
    return random.Random(seed).randbytes(OBJECT_BYTES)


@ray.remote(num_cpus=0, max_retries=0)
def _read(given: list[Any]) -> list[str]:
    """What is wrong with each object that another node has given; empty if nothing is."""
    found = []
    for seed, reference in enumerate(given):
        try:
            same = ray.get(reference, timeout=TRANSFER_SECONDS) == random.Random(seed).randbytes(OBJECT_BYTES)
            found.append("" if same else "other bytes than were given")
        except RayError as error:
            found.append(first_line(error))
    return found


def examine_transfers() -> tuple[str, list[str]]:
    """Whether every node can read what every other has in its object store: a line, and what is wrong.

    That needs the ports of each node to be open to the others; the line names them.
    """
    there = nodes()
    where = [{"scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False)} for node in there]
    given = [_give.options(**options).remote(seed) for seed, options in enumerate(where)]
    asked = [_read.options(**options).remote(given) for options in where]
    wrong = []
    for reader, reference in zip(there, asked, strict=True):
        try:
            answers = ray.get(reference, timeout=SECONDS)
        except RayError as error:
            wrong.append(f"node {reader.id[:8]} could not be asked what it can read: {first_line(error)}")
            continue
        wrong += [
            f"node {reader.id[:8]} cannot read from node {giver.id[:8]}: {answer}"
            for giver, answer in zip(there, answers, strict=True)
            if answer
        ]
    known = ("NodeManagerPort", "ObjectManagerPort")
    ports = sorted({node[key] for node in ray.nodes() if node["Alive"] for key in known})
    return f"transfers: {len(there)} nodes × {len(there)}; ports between them: {', '.join(map(str, ports))}", wrong


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
