"""HFMDS whose processes die on cue, in the middle of what they are doing, where a file says so.

It is HFMDS, not a part beside it, since only the part that asked for a synthesis is called during one.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import torch

from raysim.methods.common import feature_generator as generator
from raysim.methods.hfmds import HFMDS
from raysim.settings import setting

seen = {"round": 0}  # the last one this process trained in: evaluation is not told its own


def die(*_) -> None:
    """As the kernel's out-of-memory killer would have it."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Reaper(HFMDS):
    """Dies where a fuse is: a file `phase-round` for the server, `phase-round-client` for a client, burnt by removal.

    Client phases: training, upload, synthesis, evaluation (without a client, in its round or the next one evaluated by
    an actor that has trained), and `raise` and `crash`, which go wrong in the client's own code. Server phases:
    exchange, receive, broadcast, aggregation, generator (if fedpa comes after), checkpoint.
    """

    fuses: str = setting("", "folder of fuses")
    ballast: int = setting(0, "numbers in a client's state; many make it an object of the node's store", minimum=0)

    # -- client ------------------------------------------------------------------------------------------------------

    def begin(self, client):
        seen["round"] = client.t
        super().begin(client)
        if self.burn("raise", client.t, client.id):
            raise ValueError("this client was told to raise")
        if self.burn("crash", client.t, client.id):
            os._exit(1)

    def loss(self, client, step):
        self.die_at("training", client.t, client.id)
        return super().loss(client, step)

    def end(self, client):
        self.die_at("upload", client.t, client.id)
        super().end(client)
        if self.ballast:
            client.state[self.name]["ballast"] = torch.full((self.ballast,), float(client.t))

    def reply(self, clients):
        uploads = super().reply(clients)  # die with the images made, when most is lost
        for client in clients:
            self.die_at("synthesis", client.t, client.id)
        return uploads

    def predict(self, models, x):
        for t in range(1, seen["round"] + 1):
            self.die_at("evaluation", t)
        return super().predict(models, x)

    # -- server ------------------------------------------------------------------------------------------------------

    def exchange(self, server, t, i):
        self.die_at("exchange", t)
        return super().exchange(server, t, i)

    def receive(self, server, replies):
        self.die_at("receive", server.t)
        super().receive(server, replies)

    def broadcast(self, server):
        self.die_at("broadcast", server.t)
        return super().broadcast(server)

    def update(self, server, uploads):
        self.die_at("aggregation", server.t)
        # No hook is called in the next two. The process will not outlive the change that is made to it here.
        if self.burn("generator", server.t):
            generator.diversity = die  # a loss of FedPA's generator: its first step
        if self.burn("checkpoint", server.t):
            server.snapshot = die

    # -- fuses -------------------------------------------------------------------------------------------------------

    def die_at(self, *place) -> None:
        if self.burn(*place):
            die()

    def burn(self, *place) -> bool:
        """Whether there was a fuse for this place; removing it is atomic, so that only one process burns it."""
        if not self.fuses:
            return False
        try:
            (Path(self.fuses) / "-".join(map(str, place))).unlink()
        except FileNotFoundError:
            return False
        return True
