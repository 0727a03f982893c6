"""Add a method: one class, whose fields are its settings and whose hooks add to FedAvg.

    python examples/own_method.py

This one corrects the logits for the difference between a client's labels and everyone's. From a shell it is
`raysim run --method examples.own_method`; as raysim/methods/calibrated.py it would be `--method calibrated`.
"""

from dataclasses import dataclass

from torch.nn.functional import cross_entropy

import raysim
from raysim import Part, Upload, setting


@dataclass(frozen=True)
class Calibrated(Part):
    """Trains on logits + τ·log(p_k/p): the client's label shares over those of the last round's clients."""

    tau: float = setting(1.0, "strength of the correction (τ)", minimum=0)

    def end(self, client):
        return Upload(sum={"counts": self.counts(client)})

    def update(self, server, uploads):
        server.state[self.name] = uploads.sum

    def broadcast(self, server):
        return server.state[self.name]  # empty in the first round

    def ce_weight(self, client):
        return 0.0 if client.broadcast[self.name] else 1.0  # the term below takes its place

    def loss(self, client, step):
        if sent := client.broadcast[self.name]:
            return cross_entropy(step.logits + self.tau * (self.counts(client) / sent["counts"]).log(), step.y)

    def counts(self, client):
        return client.y.bincount(minlength=client.classes).clamp(min=1).float()


if __name__ == "__main__":
    settings = {"clients": 20, "active": 5, "rounds": 5, "partition": "classes", "train_size": 2000, "test_size": 500}
    alone = raysim.run(method=Calibrated(tau=0.8), **settings)
    both = raysim.run(method=[Calibrated(tau=0.8), "fedprox"], fedprox={"mu": 0.01}, **settings)
    print(f"calibrated {100 * alone.accuracy:.1f} %, with fedprox {100 * both.accuracy:.1f} %")
