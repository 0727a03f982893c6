"""Goes wrong in one hook of one round, in one of many ways; in every other call it is `everything`, with more hooks."""

import sys
from collections import deque
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pyarrow as pa
import torch

from raysim.data.synthetic_tables import make_table
from raysim.methods.base import Upload
from raysim.privacy.figures import Figure
from raysim.settings import setting
from tests.parts.everything import Everything

SERVER = (
    "setup", "exchange", "receive", "broadcast", "route", "aggregate", "update", "sample_features", "shared_means",
    "certificate", "model_certificate",
)  # fmt: skip
CLIENT = ("reply", "begin", "batch", "extra", "ce_weight", "loss", "pull", "weight", "end")
FUSED = ("begin_fused", "fused_loss")
OTHER = ("check", "idle", "group_size", "personal", "predict")  # which are given neither server nor client
HOOKS = (*SERVER, *CLIENT, *FUSED, *OTHER)


def _a_generator():
    yield 1


# What no checkpoint can keep.
STATES = {
    "object": lambda: object(), "set": lambda: {1, 2}, "bytes": lambda: b"12", "function": lambda: _a_generator,
    "bfloat16": lambda: torch.ones(2, dtype=torch.bfloat16), "objects": lambda: np.array([None, "a"], dtype=object),
    "deque": lambda: deque([1]), "generator": _a_generator,
}  # fmt: skip

# What is no number.
METRICS = {
    "text": lambda: "high", "list": lambda: [1.0], "none": lambda: None, "complex": lambda: 1j,
    "array": lambda: np.zeros(2), "engine": lambda: 0.5,
}  # fmt: skip
NUMBERS = {
    "float32": np.float32(0.5), "int64": np.int64(3), "tensor": torch.tensor(0.25), "bool": np.bool_(True),
    "decimal": Decimal("1.5"), "nan": float("nan"), "inf": torch.tensor(torch.inf),
}  # fmt: skip


@dataclass(frozen=True)
class Rogue(Everything):
    """Every hook does something small, and one of them goes wrong."""

    where: str = setting("", "the hook")
    what: str = setting("", "how it goes wrong")
    round: int = setting(1, "when, of hooks that know")

    def go_wrong(self, hook, found, server=None, clients=(), t=None):
        """What the hook returns: what is right, but where and when it is to go wrong."""
        if hook != self.where or (t is not None and t not in (0, self.round)):
            return found
        kind, _, detail = self.what.partition("-")
        holder = server or (clients and clients[0])
        if kind == "raises":
            raise ValueError("this hook\nis rogue")
        if kind == "exits":
            sys.exit(int(detail or 7))
        if kind == "interrupts":
            raise KeyboardInterrupt
        if kind == "state":
            holder.state[self.name]["deep"] = {"odd": STATES[detail]()}
        elif kind == "metric":
            server.metrics["accuracy" if detail == "engine" else "rogue.odd"] = METRICS[detail]()
        elif kind == "number":
            server.metrics[f"rogue.{detail}"] = NUMBERS[detail]
        elif kind == "models":
            self.spoil_models(server, detail)
        elif kind == "share":
            server.share(self.name, table_of(server.data.shape, detail))
        else:
            return wrong(hook, kind, found)
        return found

    def spoil_models(self, server, how):
        if how == "in_place":
            server.weights[0][:] = 0.0
        elif how == "item":
            server.weights[0] = server.weights[0] * 0.5
        elif how == "list":
            server.weights = [server.weights[0] * 0.5]
        elif how == "nan":
            server.weights[0] = server.weights[0] * np.float32("nan")
        elif how == "shape":
            server.weights[0] = server.weights[0][:-1]
        elif how == "lists":
            server.weights[0] = server.weights[0].tolist()
        elif how == "tensor":
            server.weights[0] = torch.from_numpy(server.weights[0])
        elif how == "none":
            server.weights = []
        elif how == "large":
            server.weights[0] = server.weights[0] + np.float32(2**22)

    # -- server --------------------------------------------------------------------------------------------------------

    def setup(self, server):
        super().setup(server)
        return self.go_wrong("setup", None, server, t=server.t)

    def exchange(self, server, t, i):
        return self.go_wrong("exchange", super().exchange(server, t, i), server, t=t)

    def receive(self, server, replies):
        super().receive(server, replies)
        return self.go_wrong("receive", None, server, t=server.t)

    def broadcast(self, server):
        return self.go_wrong("broadcast", super().broadcast(server), server, t=server.t)

    def route(self, server, t, clients):
        return self.go_wrong("route", dict.fromkeys(clients, 0), server, t=t)

    def aggregate(self, server, before, mean):
        return self.go_wrong("aggregate", mean, server, t=server.t)

    def update(self, server, uploads):
        super().update(server, uploads)
        return self.go_wrong("update", None, server, t=server.t)

    def sample_features(self, server, count):
        pair = torch.eye(4, server.model.module.feature_size), torch.zeros(4, dtype=torch.int64)
        return self.go_wrong("sample_features", pair, server)

    def shared_means(self, server):
        pair = torch.ones(2, server.model.module.feature_size), torch.arange(2)
        return self.go_wrong("shared_means", pair, server)

    def certificate(self, server):
        return self.go_wrong("certificate", [Figure("epsilon", 1.0)], server)

    def model_certificate(self, server):
        return self.go_wrong("model_certificate", [Figure("epsilon", 2.0)], server)

    # -- client --------------------------------------------------------------------------------------------------------

    def reply(self, clients):
        return self.go_wrong("reply", super().reply(clients), clients=clients, t=clients[0].t)

    def begin(self, client):
        super().begin(client)
        return self.go_wrong("begin", None, clients=[client], t=client.t)

    def batch(self, client, x, y):
        return self.go_wrong("batch", super().batch(client, x, y), clients=[client], t=client.t)

    def extra(self, client):
        return self.go_wrong("extra", client.x[:2], clients=[client], t=client.t)

    def ce_weight(self, client):
        return self.go_wrong("ce_weight", super().ce_weight(client), clients=[client], t=client.t)

    def loss(self, client, step):
        return self.go_wrong("loss", super().loss(client, step), clients=[client], t=client.t)

    def pull(self, clients, weights, start):
        pulled = torch.zeros(len(clients)), torch.zeros_like(weights)
        return self.go_wrong("pull", pulled, clients=clients, t=clients[0].t)

    def weight(self, client):
        return self.go_wrong("weight", super().weight(client), clients=[client], t=client.t)

    def end(self, client):
        return self.go_wrong("end", super().end(client), clients=[client], t=client.t)

    def begin_fused(self, clients, stack):
        return self.go_wrong("begin_fused", None, clients=clients, t=clients[0].t)

    def fused_loss(self, clients, step):
        return self.go_wrong("fused_loss", super().fused_loss(clients, step), clients=clients, t=clients[0].t)

    # -- neither -------------------------------------------------------------------------------------------------------

    def check(self, config):
        return self.go_wrong("check", None)

    def idle(self, config, sizes):
        return self.go_wrong("idle", None)

    def group_size(self, config):
        return self.go_wrong("group_size", super().group_size(config))

    def personal(self, module, t):
        return self.go_wrong("personal", super().personal(module, t), t=t)

    def predict(self, models, x):
        return self.go_wrong("predict", models[0](x))


def wrong(hook, kind, found):
    """Something of another type or shape than what was found, or with values that are not finite."""
    if kind == "type":
        return {"idle": 3.0, "personal": "head.*", "certificate": {"epsilon": 1.0}, "model_certificate": None}.get(
            hook, "rogue"
        )
    if kind == "none":
        return None
    nan = kind == "nan"
    if hook in ("ce_weight", "weight"):
        return float("nan") if nan else [1.0, 2.0]
    if hook == "aggregate":
        return found * np.float32("nan") if nan else found[:-1]
    if hook == "loss":
        return found * torch.nan if nan else found.expand(2)
    if hook == "fused_loss":
        return found * torch.nan if nan else found[:-1]
    if hook == "predict":
        return found[:, 0]
    if hook == "extra":
        return found[:, :, 1:]
    if hook == "batch":
        return (found[0] * torch.nan if nan else found[0][:-1], found[1])
    if hook in ("pull", "sample_features", "shared_means"):
        return (found[0], found[1][:, :-1] if hook == "pull" else found[1][:-1])
    if hook == "reply":
        return found[:-1]
    if hook == "end":
        return Upload(sum={"visits": torch.tensor([torch.nan])} if nan else {"visits": [1.0]})
    if hook == "route":
        return dict.fromkeys(found, 5)
    if hook == "group_size":
        return 0
    raise NotImplementedError(hook)


def table_of(shape, kind):
    """A shared dataset of ten images; all kinds but `right` are wrong."""
    images = np.zeros((10, *shape), np.float32)
    if kind == "shape":
        images = images[:, :, 1:]
    if kind == "nan":
        images[3] = np.nan
    labels = np.full(10, 99) if kind == "labels" else np.arange(10) % 2
    made = make_table(images, labels, np.full(10, -1), np.full(10, 1))
    if kind == "dtype":
        half = pa.FixedShapeTensorArray.from_numpy_ndarray(images.astype(np.float64))
        made = made.set_column(0, "image", half)
    if kind == "flat":
        made = made.set_column(0, "image", pa.array(range(10)))
    if kind == "columns":
        made = made.drop_columns(["label"])
    if kind == "empty":
        made = made.slice(0, 0)
    return {"table": made} if kind == "no_table" else made
