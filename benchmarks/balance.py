"""How evenly actors finish a round of unequal clients, before and after raysim has learned what they cost.

    python -m benchmarks.balance --out docs/benchmarks.md
    python -m benchmarks.balance --speeds 1 1 1 1 0.5 0.5 0.25 0.25           mixed GPUs

The queue, the learned costs and the dispatch are raysim's own. Only time is calculated: a client of n samples takes
`fixed + each · n` seconds on an actor of speed 1, and a round lasts until the last actor is done.
"""

import argparse
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.report import publish, table
from raysim.engine.costs import LearnedCosts
from raysim.engine.failures import FailurePolicy, FaultCount
from raysim.engine.messages import Broadcast, ClientReport, Reports
from raysim.engine.ray_runner import dispatch
from raysim.engine.runner import WorkerCalls
from raysim.engine.work_queue import Answers, Pass, in_groups

SPEEDS = {"equal actors": [1.0] * 8, "mixed actors": [0.2, 0.2, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0]}


class Actors:
    """Actors whose calls take calculated time: as much of Ray, and of ClientActors, as a dispatch uses."""

    def __init__(self, speeds: list[float], seconds: np.ndarray):
        self.speeds, self.seconds, self.now = speeds, seconds, 0.0
        self.policy, self.faults = FailurePolicy("stop", 0, 1e9, 1e9), FaultCount()
        self.actors, self.starting = dict.fromkeys(range(len(speeds))), {}
        self.placement = SimpleNamespace(node_of=lambda actor: "one")
        self.answers: dict[int, tuple[float, Any]] = {}  # reference -> when, what
        self.numbers = itertools.count()

    def __len__(self) -> int:
        return len(self.speeds)

    def ready(self) -> list[int]:
        return sorted(self.actors)

    def call(self, index: int, method: str, returns: int, *arguments: Any) -> list[int]:
        references = [next(self.numbers) for _ in range(returns)]
        if method == "collect":
            self.answers[references[0]] = self.now, self.summed[index]
            return references
        clients = [k for group in arguments[1] for k in group]
        took = self.seconds[clients] / self.speeds[index]
        reports = [ClientReport(k, seconds=float(s)) for k, s in zip(clients, took, strict=True)]
        self.answers[references[0]] = self.now + took.sum(), Reports.of(reports)
        self.summed[index] = self.summed.get(index, 0) + len(clients)
        return references

    def wait(self, references: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        if timeout:
            self.now = max(self.now, min(self.answers[reference][0] for reference in references))
        found = [reference for reference in references if self.answers[reference][0] <= self.now][:num_returns]
        return found, [reference for reference in references if reference not in found]

    def get(self, references: list[int], whom: str) -> list[Any]:
        return [self.answers[reference][1] for reference in references]

    def carry_out(self, work: Pass) -> Answers:
        self.summed: dict[int, int] = {}
        clock = SimpleNamespace(monotonic=lambda: self.now)
        with mock.patch.multiple(dispatch, ray=self, time=clock):
            return dispatch.Dispatch(work, self, dispatch.CallRates(), pinned=False, get=self.get).run()


def rounds(speeds: list[float], sizes: np.ndarray, asked: argparse.Namespace) -> list[tuple[float, float]]:
    """Of each round: its length, as a multiple of work spread evenly; and the share of time that actors waited."""
    seconds = asked.fixed + asked.each * sizes
    actors, costs, found = Actors(speeds, seconds), LearnedCosts(sizes), []
    for t in range(1, asked.rounds + 1):
        groups = in_groups(list(range(len(sizes))), 1)
        work = Pass(WorkerCalls.train, Broadcast(t, t, None), groups, [], states={}, over_clients=True)
        work.costs, work.pace = costs.of_groups(work.kind, groups)
        began = actors.now
        answers = actors.carry_out(work)
        costs.learn(work.kind, answers)
        lasted, worked = actors.now - began, sum(call.ended - call.began for call in answers.calls)
        found.append((lasted * sum(speeds) / seconds.sum(), 1 - worked / (lasted * len(speeds))))
    return found


def drawn(clients: int, asked: argparse.Namespace) -> np.ndarray:
    """The samples of so many clients."""
    shares = np.random.default_rng(0).dirichlet([asked.beta] * clients)
    return np.maximum(shares * asked.samples, 1).astype(int)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[40, 200])
    parser.add_argument("--samples", type=int, default=50_000, help="of all clients")
    parser.add_argument("--beta", type=float, default=0.3, help="of the Dirichlet distribution of their sizes")
    parser.add_argument("--fixed", type=float, default=0.2, help="seconds of any client")
    parser.add_argument("--each", type=float, default=0.001, help="seconds per sample")
    parser.add_argument("--speeds", type=float, nargs="+", help="of the actors, in place of the built-in two kinds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="file to put the section into")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    asked = parsed(arguments)
    kinds = {"these actors": asked.speeds} if asked.speeds else SPEEDS
    rows = []
    for name, clients in itertools.product(kinds, asked.clients):
        for t, (length, idle) in enumerate(rounds(kinds[name], drawn(clients, asked), asked), 1):
            rows.append([f"{name}, {clients} clients", t, f"{length:.2f}", f"{100 * idle:.0f} %"])
    said = "; ".join(f"{name}: speeds {', '.join(f'{speed:g}' for speed in speeds)}" for name, speeds in kinds.items())
    text = [
        "## Unequal clients and actors",
        f"`python -m benchmarks.balance`: {asked.samples:,} samples dealt by Dirichlet {asked.beta:g}; a client takes "
        f"{asked.fixed:g} s and {1000 * asked.each:g} ms per sample. raysim's queue, costs and dispatch; only time is "
        f"calculated. The first round goes by samples, later ones by what was learned. {said}.",
        table(["", "round", "length ÷ evenly spread work", "actors idle"], rows),
    ]
    publish("balance", "\n\n".join(text), asked.out)


if __name__ == "__main__":
    main()
