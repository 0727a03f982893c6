"""FedDyn (Acar et al., 2021): a linear and a quadratic term make the clients' minima agree with everyone's."""

from dataclasses import dataclass

import torch

from raysim.methods.base import Part
from raysim.methods.common.loss_terms import in_rows, towards
from raysim.settings import setting
from raysim.tensors import to_device, to_host


@dataclass(frozen=True)
class FedDyn(Part):
    """FedDyn: adds −⟨g_k, w⟩ + α/2·‖w − w_t‖² to the local loss; the server subtracts h/α, the clients' mean drift.

    The paper averages all clients alike: --weighting uniform. By samples, h is weighted as the model is, so that the
    stationary point is that of the loss over all samples.
    """

    alpha: float = setting(0.01, "weight of the quadratic term (α)", above=0)

    def pull(self, clients, weights, start):
        """Return −⟨g_k, w⟩ + α/2·‖w − w_t‖² and its gradient, without the linear term's value, which says nothing."""
        _, gradient = towards(weights, start, self.alpha)
        own = [client.state[self.name].get("gradient", gradient.new_zeros(())) for client in clients]
        return None, gradient - in_rows([one.expand(weights.shape[1]) for one in own])

    def end(self, client):
        """Set g_k ← g_k − α(w_k − w_t), for the parameters that are averaged."""
        size = client.model.trainable
        change = client.model.weights[:size] - client.global_weights[:size]
        if (personal := client.model.personal_mask(client.config.parts, client.t)) is not None:
            change[personal[:size]] = 0
        client.state[self.name] = {"gradient": client.state[self.name].get("gradient", 0) - self.alpha * change}

    def aggregate(self, server, before, mean):
        """Set h ← h − α·(|P|/K)·(mean − w_t), and return mean − h/α."""
        start, end = (to_device(flat, server.device).double() for flat in (before, mean))
        share = server.averaged_clients / server.config.clients
        h = server.state[self.name].get("h", torch.zeros_like(end)).double() - self.alpha * share * (end - start)
        server.state[self.name] = {"h": h.float()}
        return to_host((end - h / self.alpha).float())
