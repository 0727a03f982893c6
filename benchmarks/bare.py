"""FedAvg in 2 processes without a framework: what simulators are measured against.

    python -m benchmarks.compare        runs it; started alone it only waits for its turn (benchmarks/turns.py)

The local step is deliberately simple: torch's SGD over the parameters one by one, images in their usual layout; with
--tuned a fused SGD and images in channels-last layout. Weights go out and sums come back through shared memory.
"""

import argparse

import numpy as np
import torch
import torch.multiprocessing as multiprocessing
from torch import nn

from benchmarks.turns import Over, Turns
from benchmarks.workloads import PROCESSES, Workload, client_batch, pixels, plain_model, train_plainly


def work(rank: int, workload: Workload, tuned: bool, x, y, weights, sums, inbox, outbox) -> None:
    """Trains the clients it is sent, one after the other, and adds up their weights."""
    torch.set_num_threads(1)
    memory = torch.channels_last if tuned else torch.contiguous_format
    model = plain_model(workload.model, workload.shape).to(memory_format=memory)
    x, y = x.numpy(), y.numpy()
    outbox.put(rank)
    while (message := inbox.get()) is not None:
        t, clients = message
        sums[rank].zero_()
        for client in clients:
            # A copy: parameters become views of the vector they are given, and this one is shared by all processes.
            nn.utils.vector_to_parameters(weights.clone(), model.parameters())
            images, labels = client_batch(x, y, workload.rows(client))
            train_plainly(model, images.to(memory_format=memory), labels, np.random.default_rng((t, client)), tuned)
            sums[rank] += len(labels) * nn.utils.parameters_to_vector(model.parameters()).detach()
        outbox.put(rank)


class Bare:
    """The global model, and the processes that train it."""

    def __init__(self, workload: Workload, data: str | None, tuned: bool = False):
        spawn = multiprocessing.get_context("spawn")
        self.workload = workload
        x, y = (torch.from_numpy(values).share_memory_() for values in pixels(workload, data))
        model = plain_model(workload.model, workload.shape)
        self.weights = nn.utils.parameters_to_vector(model.parameters()).detach().share_memory_()
        self.sums = torch.zeros(PROCESSES, len(self.weights), dtype=torch.float64).share_memory_()
        self.inboxes, self.outbox = [spawn.Queue() for _ in range(PROCESSES)], spawn.Queue()
        for rank, inbox in enumerate(self.inboxes):
            arguments = (rank, workload, tuned, x, y, self.weights, self.sums, inbox, self.outbox)
            spawn.Process(target=work, args=arguments, daemon=True).start()
        self._wait()

    def round(self, t: int) -> None:
        """Clients count by their samples, and are dealt to the processes in turn."""
        size = self.workload
        cohort = np.random.default_rng(t).choice(size.clients, size.active, replace=False).tolist()
        for rank, inbox in enumerate(self.inboxes):
            inbox.put((t, cohort[rank::PROCESSES]))
        self._wait()
        self.weights.copy_(self.sums.sum(0) / np.diff(size.offsets)[cohort].sum())

    def stop(self) -> None:
        for inbox in self.inboxes:
            inbox.put(None)

    def _wait(self) -> None:
        for _ in self.inboxes:
            self.outbox.get()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", type=Workload.from_json)
    parser.add_argument("--data", help="folder with CIFAR-10")
    parser.add_argument("--tuned", action="store_true", help="with fused SGD and channels-last images")
    asked = parser.parse_args(arguments)
    turns = Turns()
    bare = Bare(asked.workload, asked.data, asked.tuned)
    try:
        turns.ready()
        t = 1
        while True:
            bare.round(t)
            turns.done(norm=float(bare.weights.norm()))
            t += 1
    except Over:
        bare.stop()


if __name__ == "__main__":
    main()
