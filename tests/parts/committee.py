"""Two models, trained by even and odd clients, that predict together."""

from dataclasses import dataclass

from raysim.methods.base import Part


@dataclass(frozen=True)
class Committee(Part):
    """Uses `route` and `predict`."""

    def setup(self, server):
        server.weights.append(server.weights[0] * 0.5)

    def route(self, server, t, clients):
        return {k: k % 2 for k in clients}

    def predict(self, models, x):
        return sum(model(x) for model in models)
