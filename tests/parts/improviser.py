"""Makes up its states, uploads, broadcasts, weights and metrics by its seed alone; much of it is unsound.

It raises nothing: whatever is wrong with what it makes up is for the engine to say.
"""

import random
from dataclasses import dataclass

import numpy as np
import torch

from raysim.data.synthetic_tables import make_table
from raysim.methods.base import Part, Upload
from raysim.settings import setting

NAMES = [
    "a",
    "b",
    "a/b",
    "a.b",
    "",
    "tensor",
    "$tuple",
    "é",
    "x" * 90,
    "model/0",
    "0",
    "\n",
    "\ud800",
    "psnr",
    "labels",
]
KEYS = [*NAMES, 0, 1, -1, 10**30, 2.5, True, None, (1, "a"), ()]
UNSOUND = [
    set, object, lambda: b"12", lambda: max, lambda: torch.ones(2, dtype=torch.bfloat16), lambda: {"deep": {1}},
    lambda: torch.eye(3).to_sparse(), lambda: np.array([None, 1], dtype=object), lambda: frozenset([1]), lambda: Upload,
]  # fmt: skip
DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]
SHAPES = [(), (0,), (1,), (3,), (2, 3), (2, 0), (1, 2, 2)]


def tensor(draw: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    values = torch.tensor([draw.choice([0.0, 1.0, draw.uniform(-3, 3)]) for _ in range(int(np.prod(shape)))])
    return values.abs().reshape(shape).to(dtype)


def number(draw: random.Random) -> object:
    value = draw.choice([0, 1, -1, 0.5, 1e-300, 1e300, 10**18, draw.uniform(-9, 9)])
    return draw.choice([value, value, np.float64(value), np.float32(0.25), np.int64(3), torch.tensor(float(value))])


def anything(draw: random.Random, unsound: float, depth: int = 0) -> object:
    """A value of any kind, one in so many of a kind that cannot be kept."""
    if draw.random() < unsound:
        return draw.choice(UNSOUND)()
    kind = draw.choice(
        ["leaf", "number", "tensor", "array"] if depth > 2 else ["leaf", "number", "tensor", "array", "deep"]
    )
    if kind == "leaf":
        return draw.choice([None, True, "text", "", "\ud800", float("nan"), float("inf"), 10**40, np.str_("x")])
    if kind == "number":
        return number(draw)
    if kind == "deep":
        count = draw.randrange(4)
        inner = [anything(draw, unsound, depth + 1) for _ in range(count)]
        if draw.random() < 0.5:
            return draw.choice([list, tuple])(inner)
        return dict(zip(draw.sample(KEYS, count), inner, strict=True))
    made = tensor(draw, draw.choice(SHAPES), draw.choice(DTYPES))
    return made if kind == "tensor" else made.numpy()


@dataclass(frozen=True)
class Improviser(Part):
    """Does what its seed says, in every hook."""

    draws: int = setting(0, "the seed of what it makes up", minimum=0)

    def draw(self, *place: object) -> random.Random:
        return random.Random(f"{self.draws}/{place}")

    @property
    def wild(self) -> bool:
        """Whether it also makes up what is unsound: about half of them do."""
        return self.draws % 2 == 1

    def does(self, *what: object, often: float = 0.4) -> bool:
        """Whether its seed has it do this at all."""
        return self.draw("does", *what).random() < often

    def change(self, state: dict, *place: object) -> None:
        """Change a state a little, or all of it."""
        draw, unsound = self.draw("state", *place), 0.02 if self.wild else 0.0
        for key in draw.sample(KEYS, draw.randrange(3)):
            state[key] = anything(draw, unsound)
        if state and draw.random() < 0.2:
            del state[draw.choice(list(state))]

    # -- server --------------------------------------------------------------------------------------------------------

    def setup(self, server):
        self.change(server.state[self.name], "setup")

    def exchange(self, server, t, i):
        self.change(server.state[self.name], "exchange", t)
        return self.draw("exchange", t).choice(["all", "cohort"]) if i == 0 and self.does("exchange") else None

    def receive(self, server, replies):
        self.look(server, replies, "receive")

    def broadcast(self, server):
        draw = self.draw("broadcast", server.t)
        if self.wild and draw.random() < 0.02:
            return anything(draw, 0.5)
        return {name: anything(draw, 0.01 if self.wild else 0.0) for name in draw.sample(NAMES, draw.randrange(3))}

    def update(self, server, uploads):
        self.look(server, uploads, "update")
        draw = self.draw("update", server.t)
        if self.does("models", often=0.2):
            scale = draw.choice([0.5, 1.0, 2.0, *([float("nan"), 1e30] if self.wild else [])])
            server.weights = [weights * np.float32(scale) for weights in server.weights]

    def look(self, server, uploads, hook) -> None:
        """Keep something of the uploads, report, and share."""
        draw, state = self.draw(hook, server.t), server.state[self.name]
        self.change(state, hook, server.t)
        if draw.random() < 0.3:
            state["sums"] = dict(uploads.sum)
        if draw.random() < 0.3:
            state["each"] = dict(uploads.each)
        for _ in range(draw.randrange(3)):
            odd = self.wild and draw.random() < 0.1
            name = draw.choice(["accuracy", "", 3] if odd and draw.random() < 0.5 else ["own.a", "own.b", "psnr"])
            server.metrics[name] = anything(draw, 0.0) if odd else number(draw)
        if self.does("share", hook, often=0.2):
            shape = server.data.shape if not (self.wild and draw.random() < 0.2) else (1, 3, 3)
            images = np.float32(np.random.default_rng(self.draws).uniform(-1, 1, (7, *shape)))
            table = make_table(images, np.arange(7) % server.data.classes, np.full(7, -1), np.full(7, server.t))
            server.share(self.name, table)

    # -- client --------------------------------------------------------------------------------------------------------

    def reply(self, clients):
        for client in clients:
            self.change(client.state[self.name], "reply", client.t, client.id)
        return [self.upload("reply", client) for client in clients]

    def begin(self, client):
        self.change(client.state[self.name], "begin", client.t, client.id)

    def weight(self, client):
        if not self.does("weight", often=0.3):
            return None
        scale = self.draw("weight").choice([1e-3, 1.0, 50.0, *([1e-12, 1e9, 0.0, 1e18] if self.wild else [])])
        return scale * client.samples

    def end(self, client):
        self.change(client.state[self.name], "end", client.t, client.id)
        return self.upload("end", client) if self.does("end", often=0.8) else None

    def upload(self, hook, client) -> Upload:
        """An upload whose names and shapes are all clients'; one in some clients is another."""
        shape, value = self.draw(hook, "shape"), self.draw(hook, client.t, client.id)
        odd = self.wild and value.random() < 0.01
        names = shape.sample(NAMES, 4)
        made = Upload()
        for name in names[: shape.randrange(3)]:
            made.sum[name] = tensor(value, shape.choice(SHAPES), shape.choice(DTYPES)) * (1e12 if odd else 1)
        if shape.random() < 0.5:
            made.each[names[2]] = tensor(value, (2, 2) if odd else shape.choice(SHAPES), shape.choice(DTYPES))
        if shape.random() < 0.5:
            made.rows[names[3]] = tensor(value, (value.randrange(4), 2), torch.float32)
        if shape.random() < 0.5:
            made.metadata["figures"] = [number(value) for _ in range(2)]
        if self.wild and value.random() < 0.01:
            made.metadata[value.choice(names)] = anything(value, 0.5)
        return made
