"""The in-process runner: the same server and client code without Ray, for unit tests and debuggers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from raysim.data.federated import FederatedData
from raysim.data.object_store import fetch
from raysim.engine.failures import FaultCount, ServerLost
from raysim.engine.runner import OnEvent, Runner, Started, ignore_event
from raysim.engine.server import Server
from raysim.engine.work_queue import Answers, Call, Pass, WorkQueue
from raysim.engine.worker import Worker

if TYPE_CHECKING:
    from raysim.config import RunConfig


class InProcess(Runner):
    """Runs everything in this process. `workers` > 1 deals the groups to several workers, as to actors."""

    def __init__(self, workers: int = 1, on_event: OnEvent = ignore_event):
        self.faults, self.on_event = FaultCount(), on_event
        self.workers_wanted = workers
        self.threads_before = torch.get_num_threads()

    def reserve(self) -> None:
        """Nothing to reserve: this process is there."""

    def start(self, config: RunConfig, data: FederatedData) -> Started:
        self.server = Server(config, data)
        self.workers = [Worker(config, data) for _ in range(self.workers_wanted)]
        hellos = [worker.hello() for worker in self.workers]
        return Started([hello.fingerprint for hello in hellos], hellos[0].model_bytes)

    def put(self, value: Any) -> Any:
        return value

    def get(self, reference: Any) -> Any:
        return fetch(reference)

    def call_server(self, method: Callable[..., Any], *arguments: Any, returns: int = 1) -> Any:
        return method(self.server, *arguments)

    def run(self, work: Pass) -> Answers:
        answers = Answers()
        queue, share = WorkQueue(work.groups, work.costs), 1 / len(self.workers)
        turn = 0
        while queue:
            actor, began = turn % len(self.workers), time.monotonic()
            answer = getattr(self.workers[actor], work.name)(*work.arguments(queue.take(share)))
            answers.calls.append(Call(actor, began, time.monotonic()))
            if work.over_clients:
                reports, uploads, states = answer
                answers.first.append(reports)
                answers.actors.append(actor)
                answers.uploads.append(uploads)
                answers.states.append(states)
            else:
                answers.first.append(answer)
            turn += 1
        if work.over_clients:
            answers.sums = [worker.collect()[1] for worker in self.workers]
        return answers

    def follow_nodes(self) -> None:
        """Nothing to follow: there are no nodes."""

    def restart_server(self, lost: ServerLost) -> None:
        """Nothing is lost in one process unless something that Ray held is gone; that ends the run."""
        raise lost

    def stop(self) -> None:
        torch.set_num_threads(self.threads_before)
