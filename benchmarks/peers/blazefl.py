"""FedAvg in BlazeFL's multi-threaded mode, as a side of benchmarks/compare.py.

    python -m benchmarks.compare --peers

Clients do the plain local step of benchmarks/workloads.py, in 2 threads of one process. The models and images are kept,
so everything beyond the step is BlazeFL's own work. BlazeFL asks for Python 3.12 and recommends a build of 3.14 without
the global interpreter lock; here it has the Python of the other sides, whose lock its threads share.
"""

from contextlib import suppress
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import torch
from blazefl.contrib import FedAvgBaseServerHandler, FedAvgThreadPoolClientTrainer, FedAvgUplinkPackage
from blazefl.core import deserialize_model, serialize_model

from benchmarks.peers import parsed
from benchmarks.turns import Over, Turns
from benchmarks.workloads import BATCH, PROCESSES, TRAINING, Workload, client_batch, pixels, plain_model, train_plainly


class Clients(FedAvgThreadPoolClientTrainer):
    """BlazeFL's pool of threads with our local step."""

    def __init__(self, workload: Workload, images: tuple[np.ndarray, np.ndarray], **settings):
        super().__init__(num_parallels=PROCESSES, epochs=1, lr=TRAINING["lr"], **settings)
        self.workload, self.images = workload, images
        self.models = SimpleQueue()  # the free ones
        for _ in range(PROCESSES):
            self.models.put(plain_model(workload.model, workload.shape))
        self.t = 0

    def local_process(self, payload, cid_list):
        self.t += 1
        super().local_process(payload, cid_list)

    def worker(self, cid, device, payload, stop_event):
        model = self.models.get()
        deserialize_model(model, payload.model_parameters)
        x, y = client_batch(*self.images, self.workload.rows(cid))
        train_plainly(model, x, y, np.random.default_rng((self.t, cid)))
        answer = FedAvgUplinkPackage(cid, serialize_model(model), len(y))
        self.models.put(model)
        return answer


def main(arguments: list[str] | None = None) -> None:
    asked = parsed(__doc__, arguments)
    workload = asked.workload
    torch.set_num_threads(1)
    settings = {
        "model_selector": SimpleNamespace(select_model=lambda name: plain_model(name, workload.shape)),
        "model_name": workload.model, "dataset": None, "num_clients": workload.clients,
        "device": "cpu", "batch_size": BATCH, "seed": 0,
    }  # fmt: skip
    clients = Clients(workload, pixels(workload, asked.data), **settings)
    server = FedAvgBaseServerHandler(
        global_round=asked.rounds, sample_ratio=workload.active / workload.clients, **settings
    )
    server.num_clients_per_round = workload.active  # it rounds the product with the ratio down
    turns = Turns()
    with suppress(Over):
        turns.ready()
        while not server.if_stop():
            cohort = server.sample_clients()
            clients.local_process(server.downlink_package(), cohort)
            for upload in clients.uplink_package():
                server.load(upload)
            turns.done(norm=float(serialize_model(server.model).norm()))


if __name__ == "__main__":
    main()
