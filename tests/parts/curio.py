"""Keeps states of unusual shape, and trains on with what it finds in them."""

from dataclasses import dataclass

import numpy as np
import torch

from raysim.methods.base import Part, Upload

STATE = {
    "a/b": 1, "a": {"b": 0}, "t": {"tensor": 3}, 7: (1, [2.5], None), None: float("nan"), (1, "x"): 2**100,
    "count": np.zeros(3, np.float32), "step": np.int64(0), "w": torch.zeros(2),
}  # fmt: skip


def grown(state):
    """The state a step later; it fails if something in it has become something else."""
    assert list(map(repr, state)) == list(map(repr, STATE))
    assert all(type(state[key]) is type(STATE[key]) for key in STATE)
    assert (state["a/b"], state["a"], state["t"], state[7]) == (1, {"b": 0}, {"tensor": 3}, (1, [2.5], None))
    state["count"][1] += np.float32(0.5)
    return state | {"step": state["step"] + np.int64(1), "w": state["w"] + 0.25}


@dataclass(frozen=True)
class Curio(Part):
    """Adds what it counts to the models and the uploads."""

    def setup(self, server):
        server.state[self.name] = STATE | {"count": np.zeros(3, np.float32)}

    def end(self, client):
        state = client.state[self.name] or STATE | {"count": np.zeros(3, np.float32)}
        client.state[self.name] = grown(state)
        return Upload(sum={"count": torch.from_numpy(client.state[self.name]["count"].copy())})

    def update(self, server, uploads):
        state = server.state[self.name] = grown(server.state[self.name])
        server.weights[0] = server.weights[0] + state["count"][1] * 1e-3 + uploads.sum["count"][1].numpy() * 1e-3
