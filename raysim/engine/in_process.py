"""The in-process runner: the same server and client code without Ray, for unit tests and debuggers."""

import time

import torch

from raysim.data.federated import fetch
from raysim.engine.server import Server
from raysim.engine.work_queue import Answers, Call, Pass, Queue
from raysim.engine.worker import Worker


class InProcess:
    """Runs everything here. `workers` > 1 deals the groups to several workers, as actors would be."""

    def __init__(self, workers: int = 1, on_event=lambda kind, **details: None):
        self.failures, self.retries, self.on_event = 0, 0, on_event  # of clients: nothing else dies on its own here
        self.workers_wanted = workers
        self.threads_before = torch.get_num_threads()

    def put(self, value):
        return value

    def reserve(self) -> None:
        """Nothing to reserve."""

    def follow_nodes(self) -> None:
        """There are none."""

    def start(self, federation) -> tuple[list[dict], int]:
        self.server = Server(federation)
        self.workers = [Worker(federation) for _ in range(self.workers_wanted)]
        hellos = [worker.hello() for worker in self.workers]
        return [fingerprint for fingerprint, _, _ in hellos], hellos[0][2]

    def call_server(self, method: str, *arguments, returns: int = 1):
        return getattr(self.server, method)(*arguments)

    def get(self, value):
        return fetch(value)

    def run(self, work: Pass) -> Answers:
        answers = Answers()
        queue = Queue(work.groups, work.costs, len(self.workers))
        turn = 0
        while queue:
            actor, began = turn % len(self.workers), time.monotonic()
            answer = getattr(self.workers[actor], work.method)(*work.arguments(queue.take()))
            answers.calls.append(Call(actor, began, time.monotonic()))
            first, *rest = answer if work.returns > 1 else (answer,)
            answers.first.append(first)
            answers.rest.append(tuple(rest))
            turn += 1
        if work.summed:
            answers.sums = [worker.collect()[1] for worker in self.workers]
        return answers

    def stop(self) -> None:
        torch.set_num_threads(self.threads_before)
