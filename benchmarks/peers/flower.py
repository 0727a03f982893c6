"""FedAvg in Flower's simulation engine, as a side of benchmarks/compare.py.

    python -m benchmarks.compare --peers

Clients do the plain local step of benchmarks/workloads.py. The actors keep model and images, so everything
beyond the step is Flower's own work. The strategy's evaluation hook marks the end of rounds; nothing is evaluated.
"""

import os

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # before they are imported

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers import parsed
from benchmarks.turns import Over, Turns
from benchmarks.workloads import PROCESSES, Workload, client_batch, pixels, plain_model, train_plainly

client_app = ClientApp()
kept = {}  # by an actor, from its first client on


@client_app.train()
def train(message, context):
    sent = message.content["config"]
    if not kept:
        torch.set_num_threads(1)
        workload = Workload.from_json(sent["workload"])
        kept["all"] = workload, plain_model(workload.model, workload.shape), pixels(workload, sent["data"])
    workload, model, images = kept["all"]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client = int(context.node_config["partition-id"])
    x, y = client_batch(*images, workload.rows(client))
    train_plainly(model, x, y, np.random.default_rng((int(sent["server-round"]), client)))
    answer = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(RecordDict(answer), reply_to=message)


def server(workload: Workload, data: str, rounds: int, turns: Turns) -> ServerApp:
    app = ServerApp()

    def after_round(t: int, arrays: ArrayRecord):
        """Called before the first round too, and after the last, when the benchmark no longer waits for an answer."""
        if t == 0:
            turns.ready()
        else:
            try:
                turns.done()
            except Over:
                if t < rounds:
                    raise

    @app.main()
    def main(grid, context):
        torch.set_num_threads(1)
        strategy = FedAvg(
            fraction_train=workload.active / workload.clients, fraction_evaluate=0.0,
            min_train_nodes=workload.active, min_available_nodes=workload.clients,
        )  # fmt: skip
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(plain_model(workload.model, workload.shape).state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord({"workload": workload.to_json(), "data": data}),
            evaluate_fn=after_round,
        )

    return app


def main(arguments: list[str] | None = None) -> None:
    asked = parsed(__doc__, arguments)
    from benchmarks.peers import flower  # so that the actors import the client instead of being sent its code

    run_simulation(
        server_app=server(asked.workload, asked.data, asked.rounds, Turns()),
        client_app=flower.client_app,
        num_supernodes=asked.workload.clients,
        backend_config={
            "init_args": {"address": "local", "num_cpus": PROCESSES, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
