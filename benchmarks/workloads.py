"""The work that is compared: five federations, and the training that is the same in all of them.

W1 has a paper's model and data, W2 many tiny clients in every round, W3 many registered clients of which few train, W4
clients of very different sizes, W5 a model of 11 million parameters.
Nothing here needs a framework, so every side of a comparison can import it in its own environment.
"""

import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

CLASSES = 10
PROCESSES = 2  # actors, or processes, of one torch thread each
TRAINING = {"lr": 0.005, "momentum": 0.9, "weight_decay": 5e-4}  # of SGD
BATCH = 10  # samples per local step, in one local epoch
WIDTHS = {"hfmds-cnn": (32, 64, 512), "small-cnn": (6, 16, 32)}  # two convolutions and a linear layer


@dataclass(frozen=True)
class Workload:
    """A FedAvg federation: `active` of `clients` train each round, each on `samples` images of its own.

    With `beta`, `samples` is their mean, and what each has is drawn from a Dirichlet distribution.
    """

    name: str
    model: str  # as raysim calls it
    shape: tuple[int, int, int]
    clients: int
    samples: int
    active: int
    rounds: int  # timed, where nothing else is asked for
    beta: float | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Workload":
        values = json.loads(text)
        return cls(**values | {"shape": tuple(values["shape"])})

    def resized(self, **sizes: int | None) -> "Workload":
        """With other sizes where they are given; never more active clients than there are."""
        changed = replace(self, **{name: size for name, size in sizes.items() if size is not None})
        return replace(changed, active=min(changed.active, changed.clients))

    def describe(self) -> str:
        height, width = self.shape[1:]
        sizes = f"{self.samples:,}" if self.beta is None else f"{self.samples:,} (Dirichlet {self.beta:g})"
        images = f"{self.shape[0]}×{height}×{width}"
        return f"{self.model}, {images}, {self.clients:,} clients × {sizes}, {self.active:,} active"

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where each client's images begin, and where the last one's end. Everyone has at least two."""
        if self.beta is None:
            return self.samples * np.arange(self.clients + 1)
        shares = np.random.default_rng(0).dirichlet(np.full(self.clients, self.beta))
        free = self.clients * (self.samples - 2)
        return 2 * np.arange(self.clients + 1) + np.rint(free * np.append(0, shares.cumsum())).astype(int)

    def rows(self, client: int) -> slice:
        """A client's images."""
        return slice(*self.offsets[client : client + 2])


WORKLOADS = {
    w.name: w
    for w in (
        Workload("w1", "hfmds-cnn", (3, 32, 32), 100, 500, 10, 10),
        Workload("w2", "small-cnn", (1, 28, 28), 1_000, 20, 1_000, 10),
        Workload("w3", "small-cnn", (1, 28, 28), 10_000, 20, 100, 30),
        Workload("w4", "hfmds-cnn", (3, 32, 32), 200, 50, 200, 10, beta=0.1),
        Workload("w5", "resnet18", (3, 32, 32), 20, 100, 20, 3),
    )
}


def pixels(workload: Workload, data: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Images (uint8) and labels, a client's samples side by side: saved ones, CIFAR-10, `shapes`, or random pixels.

    `data` is a folder that `save` has written or that has CIFAR-10 in it; only the latter needs raysim's loaders.
    """
    count = workload.clients * workload.samples
    if data and (Path(data) / f"{workload.name}-x.npy").exists():
        return tuple(np.load(Path(data) / f"{workload.name}-{axis}.npy", mmap_mode="r") for axis in "xy")
    if workload.shape == (3, 32, 32):
        from raysim.data import load

        split = load("cifar10" if data else "shapes", data=data, train_size=count, test_size=CLASSES).train
        return split.x, split.y
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (count, *workload.shape), dtype=np.uint8)
    return x, draw.integers(0, CLASSES, count)


def save(workload: Workload, folder: Path, data: str | None = None) -> None:
    """Save the images for programs without our loaders."""
    folder.mkdir(parents=True, exist_ok=True)
    for axis, values in zip("xy", pixels(workload, data), strict=True):
        np.save(folder / f"{workload.name}-{axis}.npy", values)


def plain_model(name: str, shape: tuple[int, int, int]):
    """The network in plain PyTorch; features are the output of all layers but the last."""
    import torch
    from torch import nn

    if name == "resnet18":
        from raysim.data.torchvision_import import import_torchvision

        torch.manual_seed(0)
        model = import_torchvision().models.resnet18(num_classes=CLASSES)
        model.conv1, model.maxpool = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False), nn.Identity()
        return model
    first, second, hidden = WIDTHS[name]
    flat = second * int(np.prod([((side - 4) // 2 - 4) // 2 for side in shape[1:]]))
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(shape[0], first, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES),
    )  # fmt: skip


def client_batch(x, y, rows: slice):
    """A client's images, normalised, and its labels; copied, so that the pixels stay as they are."""
    import torch

    images = torch.from_numpy(np.array(x[rows], dtype=np.float32)).sub_(127.5).div_(64)
    return images, torch.from_numpy(np.array(y[rows], dtype=np.int64))


def train_plainly(model, x, y, draw: np.random.Generator, tuned: bool = False) -> None:
    """One local epoch, as in any tutorial: what raysim and its peers are measured on; or `tuned`, with a fused SGD."""
    import torch
    from torch.nn import functional as F

    optimizer = torch.optim.SGD(model.parameters(), **TRAINING, fused=tuned)
    for batch in torch.from_numpy(draw.permutation(len(y))).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
