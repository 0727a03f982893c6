"""SCAFFOLD (Karimireddy et al., 2020): control variates correct the clients' drift in every local step."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raysim.errors import InputError
from raysim.methods.base import Part, Upload
from raysim.methods.common.loss_terms import in_rows

if TYPE_CHECKING:
    from raysim.training.client import Client


@dataclass(frozen=True)
class Scaffold(Part):
    """SCAFFOLD: every local gradient is corrected by c − c_k, the federation's mean gradient less the client's own."""

    updates_models = False

    def check(self, config):
        if config.optimizer != "sgd":
            raise InputError(
                "--method scaffold reads a client's mean gradient off its steps of SGD; use --optimizer sgd"
            )

    def idle(self, config, sizes):
        if config.rounds == 1:
            return "it corrects from the second round on; raise --rounds"
        if config.clients == 1:
            return "one client drifts from nobody; raise --clients"

    def begin(self, client):
        broadcast, own = client.broadcast[self.name], client.state[self.name].get("c", 0)
        client.scratch[self.name] = {"correction": broadcast["c"] - own} if broadcast else {}

    def pull(self, clients, weights, start):
        """Return ⟨c − c_k, w⟩ and its gradient; None in the first round, whose broadcast is empty.

        The value says nothing.
        """
        if not clients[0].scratch[self.name]:
            return None
        return None, in_rows([client.scratch[self.name]["correction"] for client in clients])

    def end(self, client):
        """Set c_k⁺ = c_k − c + (w_t − w_k)/A, for the parameters that are averaged, and upload its change."""
        size = client.model.trainable
        gradient = (client.global_weights[:size] - client.model.weights[:size]) / path_length(client)
        if (personal := client.model.personal_mask(client.config.parts, client.t)) is not None:
            gradient[personal[:size]] = 0
        own, common = client.state[self.name].get("c", 0), client.broadcast[self.name].get("c", 0)
        client.state[self.name] = {"c": own - common + gradient}
        return Upload(sum={"c": gradient - common})

    def broadcast(self, server):
        return server.state[self.name]

    def update(self, server, uploads):
        """Set c ← c + (|S|/K)·mean Δc_k."""
        if uploads.sum:
            before = server.state[self.name].get("c", 0)
            server.state[self.name] = {"c": before + uploads.sum["c"] / server.config.clients}


def path_length(client: "Client") -> float:
    """Return A, the distance by which a constant gradient of 1 moves a weight in the local steps.

    Without momentum it is steps·η.
    """
    velocity = moved = 0.0
    for _ in range(client.steps):
        velocity = client.config.momentum * velocity + 1  # (1 − β^j)/(1 − β) in step j
        moved += velocity
    return client.config.learning_rate(client.t) * moved
