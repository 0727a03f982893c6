"""What a round costs the driver itself: the real simulation and dispatch, with client actors that do nothing.

    python -m benchmarks.driver                               10,000 active clients on 64 nodes × 16 actors, pretended
    python -m benchmarks.driver --profile                     the same, and where the time goes
    python -m benchmarks.driver --ray 100 --active 1000       with a Ray of its own and 100 real actors

Pretended actors answer at once and cost nothing: what is timed is raysim's own code, with every call and every answer
pickled as Ray pickles them. With `--ray` the processor time is that of the driver's whole process, Ray's threads
included. Actors do not import torch, so hundreds fit on one machine.
"""

import argparse
import cProfile
import itertools
import json
import pickle
import pstats
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.report import machine, publish, table
from raysim.config import RunConfig, resolve
from raysim.data.federated import Chunks, FederatedData
from raysim.data.normalisation import Normalisation
from raysim.engine.messages import Broadcast, ClientReport, EachUpload, Hello, PassAnswer, Reports, States
from raysim.engine.work_queue import Group

PARAMETERS = 1_000  # of the model that nobody trains


class IdleWorker:
    """Answers as engine/worker.py's Worker does, without having done anything; clients keep a state, and send it."""

    def __init__(self, config: RunConfig, data: FederatedData, use_gpu: bool = True):
        self.data, self.summed = data, 0
        self.uploads = config.method == "scaffold"  # stands for all whose clients have states and uploads

    def hello(self) -> Hello:
        return Hello({"device": "none"}, 4 * PARAMETERS)

    def train(self, broadcast: Broadcast, groups: list[Group], states: States) -> PassAnswer:
        clients = [k for group in groups for k in group]
        self.summed += len(clients)
        reports = [
            ClientReport(k, samples=int(self.data.sizes[k]), seconds=1e-6, terms={"ce": 2.3}, bytes_up=4 * PARAMETERS)
            for k in clients
        ]
        if not self.uploads:
            return PassAnswer(Reports.of(reports), None, None)
        each = [(k, {"scaffold": {"control": np.zeros(4, np.float32)}}) for k in clients]
        return PassAnswer(replace(Reports.of(reports), uploads=len(clients), with_state=clients), each, each)

    def collect(self) -> tuple[int, dict[str, np.ndarray]]:
        summed, self.summed = self.summed, 0
        return summed, {"model/0": np.ones(PARAMETERS + 1, np.int64)}

    def add(self, sums: int, *arrived: Any) -> tuple[int, dict[str, np.ndarray], EachUpload]:
        return sums, {"model/0": np.ones(PARAMETERS + 1, np.int64)}, None


class IdleServer:
    """Answers as engine/server.py's Server does; counts what it is sent."""

    def __init__(self, config: RunConfig, data: FederatedData, use_gpu: bool = True):
        self.sums = self.uploads = 0  # of the last pass

    def hello(self) -> None:
        """Nothing to prepare."""

    def begin(self, start: None = None) -> list[np.ndarray]:
        return [np.zeros(PARAMETERS, np.float32)]

    def aggregate(self, t: int, trained: Counter, sums: int, *arrived: Any) -> list[np.ndarray]:
        self.sums, self.uploads = sums, len(arrived) - sums
        return self.begin()

    def update(self, t: int) -> list[np.ndarray]:
        return self.begin()

    def broadcast(self, t: int) -> tuple[dict[str, Any], int]:
        return {}, 0

    def take_news(self) -> tuple[dict[str, float], dict[str, Any], float, list[str]]:
        return {}, {}, 0.0, []

    def export(self) -> tuple[int, int]:
        """What the last pass sent."""
        return self.sums, self.uploads


# -- actors that are only pretended ------------------------------------------------------------------------------------


class Clock:
    """The processor time of this process, without what the pretended actors take of it."""

    def __init__(self) -> None:
        self.elsewhere = 0.0

    def now(self) -> float:
        return time.process_time() - self.elsewhere

    @contextmanager
    def stopped(self) -> Iterator[None]:
        started = time.process_time()
        yield
        self.elsewhere += time.process_time() - started


class PretendedRay:
    """As much of Ray as the runner uses while nothing fails: objects are pickled, calls are done at once."""

    def __init__(self, clock: Clock):
        self.clock, self.objects, self.numbers = clock, {}, itertools.count()
        self.calls = Counter()

    def put(self, value: Any) -> int:
        reference = next(self.numbers)
        self.objects[reference] = pickle.dumps(value)
        return reference

    def get(self, references: int | list[int], timeout: float | None = None) -> Any:
        if isinstance(references, list):
            return [pickle.loads(self.objects[reference]) for reference in references]  # noqa: S301 - our own
        return pickle.loads(self.objects[references])  # noqa: S301

    def wait(self, references: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        return references[:num_returns], references[num_returns:]

    def kill(self, actor: Any) -> None:
        """Nothing to end."""


class PretendedActor:
    """Hosts a worker or the server in this process, behind Ray's way of calling."""

    def __init__(self, ray: PretendedRay, held: Any):
        self.ray, self.held = ray, held
        self.call = self.call_in_order = self

    def options(self, name: str, num_returns: int) -> "PretendedCall":
        return PretendedCall(self, num_returns)


class PretendedCall:
    """One method of an actor, to be called."""

    def __init__(self, actor: PretendedActor, returns: int):
        self.actor, self.returns = actor, returns

    def remote(self, *given: Any) -> Any:
        name, *arguments = given if isinstance(given[0], str) else given[1:]  # without the number of a server's call
        ray = self.actor.ray
        ray.calls[name] += 1
        sent = pickle.dumps(arguments)
        with ray.clock.stopped():
            arrived = arguments if name in ("add", "aggregate") else pickle.loads(sent)  # noqa: S301
            answer = getattr(self.actor.held, name)(*arrived)
            if self.returns == 1:
                return ray.put(answer)
            return [ray.put(value) for value in answer]


class Places:
    """A placement of so many actors on every node."""

    def __init__(self, per_node: int):
        self.per_node = per_node

    def node_of(self, actor: int) -> str:
        return f"node {actor // self.per_node}"


@contextmanager
def pretended(config: RunConfig, data: FederatedData, nodes: int, per_node: int, clock: Clock) -> Iterator[Any]:
    """A RayRunner whose actors are in this process."""
    from raysim.engine.ray_runner import dispatch, lifecycle, runner
    from raysim.engine.ray_runner.plan import Node, make_plan

    fake = PretendedRay(clock)
    plan = make_plan(config, [Node(str(i), per_node, 0, 2**40) for i in range(nodes)], 0)
    one = runner.RayRunner(plan, config)
    one.clients.placement = Places(per_node)
    one.clients.actors = {i: PretendedActor(fake, IdleWorker(config, data)) for i in range(nodes * per_node)}
    one.clients.nodes_checked = float("inf")  # never
    one.server = PretendedActor(fake, IdleServer(config, data))
    with ExitStack() as patched:
        for module in (dispatch, lifecycle, runner):
            patched.enter_context(mock.patch.object(module, "ray", fake))
        yield one, fake.calls


@contextmanager
def real(config: RunConfig, data: FederatedData) -> Iterator[Any]:
    """A RayRunner on a Ray of its own, with actors that do nothing."""
    from raysim.engine.ray_runner import cluster, placement, plan, runner

    hosted = {"WORKER": "benchmarks.driver:IdleWorker", "SERVER": "benchmarks.driver:IdleServer"}
    small = mock.patch.object(plan, "ACTOR_BYTES", 70 * 2**20)  # without torch
    with mock.patch.multiple(placement, **hosted), small, cluster.connected():
        one = runner.RayRunner(plan.make_plan(config, cluster.nodes(), 0), config)
        one.reserve()
        try:
            one.start(config, data)
            yield one, Counter()
        finally:
            one.stop()


# -- rounds ------------------------------------------------------------------------------------------------------------


def settings(asked: argparse.Namespace) -> RunConfig:
    actors = asked.ray or asked.nodes * asked.per_node
    return resolve([
        ("benchmark", {
            "clients": asked.clients, "active": min(asked.active, asked.clients), "actors": actors, "eval_every": 0,
            "rounds": 1_000_000, "metrics": False, "checkpoint_every": 0,
        } | ({"method": "scaffold"} if asked.states else {})),
    ])  # fmt: skip


def federation(clients: int) -> FederatedData:
    """Data that nobody reads: clients of 10 to 30 samples."""
    sizes = np.random.default_rng(0).integers(10, 31, clients)
    nothing = Chunks([], np.zeros(clients, np.int32), np.zeros(clients, np.int64), sizes)
    return FederatedData((1, 28, 28), 10, Normalisation((0.5,), (0.5,)), sizes, nothing, nothing)


def measure(asked: argparse.Namespace, profile: cProfile.Profile | None = None) -> dict[str, Any]:
    """The driver's processor seconds of each round after the first two, and what a round sends."""
    from raysim.engine.server import Server
    from raysim.engine.simulation import Simulation

    config, data, clock = settings(asked), federation(asked.clients), Clock()
    runner = real(config, data) if asked.ray else pretended(config, data, asked.nodes, asked.per_node, clock)
    seconds, lasted = [], []
    with runner as (one, calls):
        simulation = Simulation(config, data, one, 4 * PARAMETERS)
        simulation.restore(None)
        for t in range(1, asked.rounds + 3):
            began, clock_began = time.perf_counter(), clock.now()
            calls.clear()
            if profile and t == asked.rounds + 2:
                profile.enable()
            metrics, _ = simulation.round(t)
            json.dumps([metrics.to_line(), metrics.timeline])  # as it is recorded
            one.get(simulation.weights)
            if t > 2:  # the first learns what clients cost
                seconds.append(clock.now() - clock_began)
                lasted.append(time.perf_counter() - began)
        if profile:
            profile.disable()
        sums, uploads = one.get(one.call_server(Server.export))
        spans = [span for phase in metrics.timeline["spans"].values() for span in phase]
        calls.setdefault("train", len(spans))
    actors = asked.ray or asked.nodes * asked.per_node
    return {"seconds": seconds, "lasted": lasted, "calls": calls, "sums": sums, "uploads": uploads, "actors": actors}


HEAD = [
    "actors", "active clients", "driver, CPU s per round", "calculated", "s per round", "calls to train",
    "sums, uploads sent to the server",
]  # fmt: skip


def row(asked: argparse.Namespace, found: dict[str, Any]) -> list[object]:
    from benchmarks.cluster_model import Rates, driver_seconds  # which imports this module

    calls, nodes = found["calls"]["train"], 1 if asked.ray else asked.nodes
    calculated = driver_seconds(Rates(), calls, found["actors"], nodes, asked.active)
    where = f"{found['actors']:,} on Ray" if asked.ray else f"{asked.nodes} nodes × {asked.per_node}, pretended"
    took = [f"{statistics.median(values):.3f}" for values in (found["seconds"], found["lasted"])]
    return [
        where, f"{asked.active:,}", took[0], f"{calculated:.3f}" if asked.ray else "–", took[1] if asked.ray else "–",
        f"{calls:,}", f"{found['sums']}, {found['uploads']}",
    ]  # fmt: skip


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=100_000, help="registered")
    parser.add_argument("--active", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--per-node", type=int, default=16, help="actors on each node")
    parser.add_argument("--ray", type=int, default=0, help="so many real actors, on a Ray of its own")
    parser.add_argument("--states", action="store_true", help="clients keep a state, and send something by themselves")
    parser.add_argument("--rounds", type=int, default=5, help="timed")
    parser.add_argument("--profile", action="store_true", help="also print where the time of a round goes")
    parser.add_argument("--out", type=Path, help="file to put the section into")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    asked = parsed(arguments)
    profile = cProfile.Profile() if asked.profile else None
    found = measure(asked, profile)
    name = "driver on Ray" if asked.ray else "driver"
    text = [
        "## What a round costs the driver" + (", on Ray" if asked.ray else ""),
        f"`python -m benchmarks.driver{f' --ray {asked.ray}' * bool(asked.ray)}`: {asked.clients:,} registered "
        f"clients; actors do nothing. {'Calculated: as in the section on larger clusters. ' * bool(asked.ray)}Medians.",
        table(HEAD, [row(asked, found)]),
        machine(),
    ]
    publish(name, "\n\n".join(text), asked.out)
    if profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)


if __name__ == "__main__":
    main()
