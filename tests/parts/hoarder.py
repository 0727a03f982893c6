"""Keeps in its state what no checkpoint can keep, put there in the hook of one's choice."""

from dataclasses import dataclass

from raysim.methods.base import Part
from raysim.settings import setting


@dataclass(frozen=True)
class Hoarder(Part):
    """In round 2, or in `setup`, one hook puts a set into the state."""

    hook: str = setting("update", "that does it")

    def hoard(self, state, hook, t):
        if hook == self.hook and t in (0, 2):
            state[self.name] = {"fine": 1, "seen": {1}}

    def setup(self, server):
        self.hoard(server.state, "setup", server.t)

    def exchange(self, server, t, i):
        self.hoard(server.state, "exchange", t)
        return "cohort" if i == 0 and self.hook in ("reply", "receive") else None

    def broadcast(self, server):
        self.hoard(server.state, "broadcast", server.t)
        return {}

    def route(self, server, t, clients):
        self.hoard(server.state, "route", t)

    def reply(self, clients):
        self.hoard(clients[-1].state, "reply", clients[-1].t)
        return super().reply(clients)

    def receive(self, server, replies):
        self.hoard(server.state, "receive", server.t)

    def begin(self, client):
        self.hoard(client.state, "begin", client.t)

    def end(self, client):
        self.hoard(client.state, "end", client.t)

    def aggregate(self, server, before, mean):
        self.hoard(server.state, "aggregate", server.t)
        return mean

    def update(self, server, uploads):
        self.hoard(server.state, "update", server.t)
