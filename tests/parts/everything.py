"""Uses every hook at once, so that one hash covers all paths through the engine."""

from dataclasses import dataclass

import torch

from raysim.methods.base import Part, Upload
from raysim.settings import setting


@dataclass(frozen=True)
class Everything(Part):
    """Every hook does something small."""

    strength: float = setting(0.01, "of the loss term", minimum=0)
    group: int = setting(3, "clients per reply", minimum=1)

    def group_size(self, config):
        return self.group

    def setup(self, server):
        server.state[self.name] = {"centre": torch.zeros(server.model.module.feature_size), "seen": torch.zeros(1)}

    def exchange(self, server, t, i):
        return {(1, 0): "all", (2, 0): "cohort", (2, 1): "cohort"}.get((t, i))

    def reply(self, clients):
        # Computed for the group together, as synthesis will be.
        features = clients[0].model.module.features(torch.cat([c.x[:2] for c in clients])).detach()
        for client in clients:
            state = client.state[self.name]
            state["replies"] = state.get("replies", torch.zeros(1)) + 1
        return [
            Upload(sum={"features": features.mean(0)}, each={"labels": torch.bincount(c.y, minlength=c.classes)})
            for c in clients
        ]

    def receive(self, server, replies):
        state = server.state[self.name]
        state["centre"] = replies.sum["features"] / len(replies.each)
        state["labels"] = torch.from_numpy(sum(each["labels"] for _, each in replies.each)).to(torch.float32)
        state["order"] = torch.tensor([float(client) for client, _ in replies.each])

    def broadcast(self, server):
        return {"centre": server.state[self.name]["centre"], "t": server.t}

    def begin(self, client):
        state = client.state[self.name]
        state["visits"] = state.get("visits", torch.zeros(1)) + 1
        self.draw(client)

    def draw(self, client):
        return client.stream(f"{self.name}/noise")

    def batch(self, client, x, y):
        noise = self.draw(client).standard_normal(x.shape[1:], dtype="float32")
        return x + 0.01 * torch.from_numpy(noise), y

    def ce_weight(self, client):
        return 0.5

    def loss(self, client, step):
        assert step.real_x.shape == step.x.shape
        centre = client.broadcast[self.name]["centre"]
        return self.strength * (step.features - centre).square().mean() * client.state[self.name]["visits"][0]

    def fused_loss(self, clients, step):
        assert step.real_x.shape == step.x.shape
        centre = clients[0].broadcast[self.name]["centre"]
        visits = torch.cat([client.state[self.name]["visits"] for client in clients])
        return self.strength * ((step.features - centre).square().mean(2) * step.share).sum(1) * visits

    def weight(self, client):
        return client.samples + 1.0

    def end(self, client):
        visits = client.state[self.name]["visits"]
        return Upload(sum={"visits": visits}, each={"visits": visits, "client": client.id})

    def personal(self, module, t):
        return ("head.bias",)

    def update(self, server, uploads):
        state = server.state[self.name]
        assert [client for client, _ in uploads.each] == [each["client"] for _, each in uploads.each]
        state["seen"] = state["seen"] + uploads.sum["visits"]
        noise = server.stream(f"{self.name}/noise").standard_normal(len(server.weights[0]))
        server.weights[0] = server.weights[0] + 1e-4 * noise.astype("float32")
