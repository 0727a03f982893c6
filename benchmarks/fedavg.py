"""raysim beside a plain PyTorch loop over 2 processes: the same FedAvg rounds, interleaved in one run.

    make bench        or        python -m benchmarks.fedavg --rounds 10

Both train the same clients on the same samples with the same optimiser, without evaluation, on 2 processes of one torch
thread each. The plain loop has no framework at all: it is the floor a simulator is measured against. What it prints is
the ratio of the medians, taken round by round so that a noisy machine hits both alike.
"""

import argparse
import statistics
import time

import torch
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.nn import functional as F

from raysim.config import resolve
from raysim.engine.environment import secure_local_ray
from raysim.rng import stream

SETTINGS = {
    "dataset": "shapes", "clients": 100, "active": 10, "partition": "iid", "batch_size": 10, "local_epochs": 1,
    "lr": 0.005, "momentum": 0.9, "weight_decay": 5e-4, "eval_every": 0, "actors": 2,
}  # fmt: skip
SAMPLES = 200  # per client


def plain_model() -> nn.Module:
    """hfmds-cnn as one would write it."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1600, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


def plain_worker(x, y, shards, weights, sums, inbox, outbox, rank: int, config: dict) -> None:
    """Trains the clients it is sent, one after the other, and adds up their weights."""
    torch.set_num_threads(1)
    model = plain_model()
    parameters = list(model.parameters())
    outbox.put(None)
    while (message := inbox.get()) is not None:
        t, clients = message
        sums[rank].zero_()
        for client in clients:
            nn.utils.vector_to_parameters(weights, parameters)
            optimizer = torch.optim.SGD(
                parameters, lr=config["lr"], momentum=config["momentum"], weight_decay=config["weight_decay"]
            )
            mine_x = ((x[shards[client]].float() - 127.5) / 64).contiguous()
            mine_y = y[shards[client]]
            order = torch.from_numpy(stream(0, "batches", t, client).permutation(len(mine_y)))
            for batch in order.split(config["batch_size"]):
                optimizer.zero_grad()
                F.cross_entropy(model(mine_x[batch]), mine_y[batch]).backward()
                optimizer.step()
            sums[rank] += nn.utils.parameters_to_vector(parameters).detach()
        outbox.put(None)


class Plain:
    """The loop without a framework, on 2 spawned processes."""

    def __init__(self, dataset, dealt, config: dict):
        spawn = multiprocessing.get_context("spawn")
        x, y = torch.from_numpy(dataset.train.x).share_memory_(), torch.from_numpy(dataset.train.y).share_memory_()
        shards = [torch.from_numpy(dealt.indices(k)) for k in range(dealt.clients)]
        self.weights = nn.utils.parameters_to_vector(plain_model().parameters()).detach().share_memory_()
        self.sums = torch.zeros(2, len(self.weights)).share_memory_()
        self.inboxes, self.outbox = [spawn.Queue() for _ in range(2)], spawn.Queue()
        for rank, inbox in enumerate(self.inboxes):
            arguments = (x, y, shards, self.weights, self.sums, inbox, self.outbox, rank, config)
            spawn.Process(target=plain_worker, args=arguments, daemon=True).start()
        self.wait()

    def wait(self) -> None:
        for _ in self.inboxes:
            self.outbox.get()

    def round(self, t: int, cohort: list[int]) -> None:
        for rank, inbox in enumerate(self.inboxes):
            inbox.put((t, cohort[rank::2]))
        self.wait()
        self.weights.copy_(self.sums.sum(0) / len(cohort))

    def stop(self) -> None:
        for inbox in self.inboxes:
            inbox.put(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds of each")
    rounds = parser.parse_args().rounds
    secure_local_ray()  # before Ray is imported
    from raysim.engine import cluster
    from raysim.engine.pool import Pool
    from raysim.engine.simulation import Simulation
    from raysim.engine.store import federation
    from raysim.run import plan_for, prepare

    config = resolve([("benchmark", SETTINGS | {"rounds": rounds + 1, "train_size": SETTINGS["clients"] * SAMPLES})])
    dataset, dealt = prepare(config)
    plain = Plain(dataset, dealt, SETTINGS)
    with cluster.connected():
        pool = Pool(plan_for(config, dataset, dealt), pinned=False)
        data = federation(config, dataset, dealt, pool.put)
        pool.reserve()
        _, model_bytes = pool.start(data)
        simulation = Simulation(config, data, pool, model_bytes)
        seconds: dict[str, list[float]] = {"plain": [], "raysim": []}
        for t in range(1, rounds + 1):
            started = time.perf_counter()
            plain.round(t, simulation.sample(t))
            middle = time.perf_counter()
            simulation.round(t)
            pool.get(simulation.weights)  # until the average is there
            if t > 1:  # the first round warms both up
                seconds["plain"].append(middle - started)
                seconds["raysim"].append(time.perf_counter() - middle)
        pool.stop()
    plain.stop()
    for name, times in seconds.items():
        print(f"{name:8} median {statistics.median(times):.3f} s a round ({min(times):.3f} to {max(times):.3f})")
    ratios = [r / p for r, p in zip(seconds["raysim"], seconds["plain"], strict=True)]
    spread = f"({min(ratios):.3f} to {max(ratios):.3f})"
    print(f"ratio    median {statistics.median(ratios):.3f} {spread}; below 1 raysim is faster")


if __name__ == "__main__":
    main()
