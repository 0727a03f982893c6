"""A client as the client hooks of a part see it, and the local training loop that all methods share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from raysim import models
from raysim.data.federated import FederatedData
from raysim.data.normalisation import DeviceNormalisation
from raysim.data.synthetic_tables import column
from raysim.models.classifier import classified
from raysim.models.flat import FlatModel
from raysim.rng import stream
from raysim.tensors import upload_all
from raysim.training.device import autocast
from raysim.training.optimizers import Adam, Optimizer, Sgd
from raysim.training.shared_images import SharedImages

if TYPE_CHECKING:
    from raysim.config import RunConfig

PERSONAL = "personal"  # key of a client's own parameters in its state, beside the names of the parts

Forward = Callable[[Any, torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]


class Inputs(NamedTuple):
    """The inputs of a local step: the batch as parts have changed it, and as it was before."""

    x: torch.Tensor
    y: torch.Tensor
    real_x: torch.Tensor
    real_y: torch.Tensor


@dataclass
class Step:
    """A local step as the parts see it; `real_x` and `real_y` are the batch before any part changed it."""

    x: torch.Tensor
    y: torch.Tensor
    real_x: torch.Tensor
    real_y: torch.Tensor
    features: torch.Tensor
    logits: torch.Tensor
    ce: torch.Tensor
    extra: dict[str, torch.Tensor] = field(default_factory=dict)  # part -> logits of the images it added by `extra`

    @property
    def real_features(self) -> torch.Tensor:
        """Return the features of the batch as it was, or of its mixtures where a part has mixed the images."""
        return self.features if len(self.features) == len(self.real_y) else self.features[: len(self.real_y)]


def forward(module: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return features, logits and cross-entropy as `classified` does: what can be compiled of a local step."""
    return classified(module, module.features(x), y)


@dataclass
class Client:
    """A client as the hooks of a part are given it; only its `state` outlives the pass."""

    id: int
    t: int  # the round
    config: RunConfig
    classes: int
    model: FlatModel
    global_weights: torch.Tensor  # flat, as broadcast
    x: torch.Tensor  # all its images (with --labelled, those with labels), normalised, on the device
    y: torch.Tensor
    broadcast: dict[str, dict[str, Any]]  # part -> what the server's part broadcast
    state: dict[str, dict[str, Any]]  # part -> what persists of it
    shared: dict[str, SharedImages] = field(default_factory=dict)  # part -> the dataset it shares with all clients
    normalisation: DeviceNormalisation | None = None
    had_state: bool = False  # whether it had a state at the start of this pass
    unlabelled: torch.Tensor | None = None  # with --labelled: its images without labels, which are not in x
    scratch: dict[str, dict[str, Any]] = field(default_factory=dict)  # part -> what it needs within this pass only
    kept: dict[str, Any] = field(default_factory=dict)  # part -> what it makes once for all clients of an actor's pass
    forward: Forward = forward  # forward pass of a local step, perhaps compiled; a part may replace it in `begin`

    def __post_init__(self) -> None:
        self.samples = len(self.y)  # number of its own samples, without those that `augment` adds

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of local steps in an epoch."""
        if self.config.drop_last:
            return max(1, self.samples // self.config.batch_size)
        return math.ceil(self.samples / self.config.batch_size)

    @property
    def steps(self) -> int:
        """Return the number of local steps in a round."""
        return self.config.local_steps or (self.config.local_epochs or 1) * self.steps_per_epoch

    def stream(self, purpose: str) -> np.random.Generator:
        """Return the client's random stream of this round for a purpose, such as `f"{self.name}/noise"` in a part."""
        return stream(self.config.seed, purpose, self.t, self.id)

    def pixels(self, x: torch.Tensor) -> torch.Tensor:
        """Return normalised images as pixels in [0, 1]."""
        return self.scale.to_pixels(x)

    def pixel_range(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the normalised values of black and white."""
        return self.scale.limits()

    @property
    def scale(self) -> DeviceNormalisation:
        """Return the normalisation of the client's images, for parts that make or change images."""
        if self.normalisation is None:
            raise ValueError("this client was made without a normalisation")
        return self.normalisation

    def draw_rows(self, rows: int, draw: np.random.Generator) -> list[np.ndarray]:
        """Draw rows out of so many for every local step, as many as its batch has samples."""
        return [draw.integers(rows, size=size) for size in self.batch_sizes]

    @property
    def largest_batches(self) -> list[int]:
        """Return the sizes of all local batches, with the unlabelled samples that a part may add to them."""
        adds = self.unlabelled is not None and any(part.adds_samples for part in self.config.parts)
        added = self.config.unlabelled_batch if adds else 0
        return [size + added for size in self.batch_sizes]

    def shared_by(self, shared: SharedImages, source: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all images of a shared dataset that one client made, with their labels, on the device."""
        return shared.rows(np.flatnonzero(column(shared.table, "client") == source))

    def augment(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add samples to draw batches from in this pass; an epoch stays as long as the client's own data."""
        self.x, self.y = torch.cat([self.x, x]), torch.cat([self.y, y])

    @cached_property
    def batch_sizes(self) -> list[int]:
        """Return the number of samples in each local step's batch."""
        size = self.config.batch_size
        epoch = [min(size, self.samples - first) for first in range(0, self.steps_per_epoch * size, size)]
        return [epoch[step % len(epoch)] for step in range(self.steps)]

    def batches(self) -> list[np.ndarray]:
        """Return the indices of each local step's batch.

        Every epoch has a new order; its last batch may be smaller, or dropped.
        """
        size, draw = self.config.batch_size, self.stream("batches")
        found = []
        for step in range(self.steps):
            place = step % self.steps_per_epoch
            if place == 0:
                order = draw.permutation(len(self.y))[: self.samples]
            found.append(order[place * size : (place + 1) * size])
        return found

    def everything(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Return all images of the client with their labels, in evaluation batches."""
        size = self.config.eval_batch
        return zip(self.x.split(size), self.y.split(size), strict=True)


def split_labelled(
    x: torch.Tensor, y: torch.Tensor, count: int, seed: int, client_id: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a client's labelled images, their labels, and its images without labels; the same in every round."""
    from raysim.data.dataset import keep_stratified  # imported here, since few runs need it

    labels = y.cpu().numpy()
    labelled = keep_stratified(labels, min(count, len(labels)), stream(seed, "labelled", client=client_id))
    rows, others = (
        torch.from_numpy(r).to(y.device) for r in (labelled, np.setdiff1d(np.arange(len(labels)), labelled))
    )
    return x[rows], y[rows], x[others]


def initial_model(config: RunConfig, data: FederatedData, device: torch.device) -> FlatModel:
    """Return the model that every run of this configuration starts from, in evaluation mode."""
    module = models.build(config.model, data.shape, data.classes, config.seed)
    return FlatModel(module.eval(), device)


def make_optimizer(parameters: Sequence[torch.Tensor], config: RunConfig, t: int) -> Optimizer:
    """Return the local optimiser of round t, new for every client and round."""
    lr, weight_decay = config.learning_rate(t), config.weight_decay
    if config.optimizer == "adam":
        return Adam(parameters, lr=lr, weight_decay=weight_decay)
    return Sgd(parameters, lr=lr, weight_decay=weight_decay, momentum=config.momentum)


def begin(client: Client) -> None:
    """Prepare the client's local steps; its model has the weights to start from."""
    if not client.model.module.training:  # a group of small clients would spend a twentieth of its time on this
        client.model.module.train()
    for part in client.config.parts:
        part.ask("begin", client)


def train(client: Client) -> dict[str, float]:
    """Do the local steps, and return the mean of each loss term; the model then has the trained weights.

    Nothing is copied to the device in a step, and nothing waits for it: all draws are uploaded before the first.
    """
    model, config = client.model, client.config
    begin(client)
    # The optimiser goes parameter by parameter, and no gradients stay between steps: each is written once, where one
    # flat gradient would be cleared and added to. That saves 4 % of a step of hfmds-cnn.
    optimizer = make_optimizer(model.parameters, config, client.t)
    reported: dict[str, list[torch.Tensor]] = {}
    one = torch.ones((), device=model.device)  # the gradient of the loss, which torch would make anew in every step
    for indices in upload_all(client.batches(), model.device):
        x, y = real_x, real_y = client.x[indices], client.y[indices]
        for part in config.parts:
            x, y = part.ask("batch", client, x, y)
        inputs = Inputs(x, y, real_x, real_y)
        terms = add_gradients(client, inputs, optimizer, one)
        optimizer.step()
        for name, term in terms.items():
            reported.setdefault(name, []).append(term)
    model.module.eval()
    return {name: math.fsum(torch.stack(values).tolist()) / client.steps for name, values in reported.items()}


def add_gradients(client: Client, inputs: Inputs, optimizer: Optimizer, one: torch.Tensor) -> dict[str, torch.Tensor]:
    """Give the parameters the gradients of a local step's loss, and return the terms to report."""
    parts = client.config.parts
    with autocast(client.config, client.model.device):
        step = forward_all(client, inputs)
        weight = ce_weight(client)
        loss = step.ce if weight == 1 else step.ce * weight
        terms = {"ce": step.ce}
        for part in parts:
            if (term := part.ask("loss", client, step)) is not None:
                loss = loss + term
                terms |= {part.name: term} if part.reported else {}
    optimizer.zero_grad()
    loss.backward(one)
    for name, value in add_pulls(client).items():  # of a part that also has a loss both count
        terms[name] = terms[name] + value if name in terms else value
    return {name: term.detach() for name, term in terms.items()}


def ce_weight(client: Client) -> float:
    """Return the factor on the cross-entropy in a local step."""
    return math.prod(part.ask("ce_weight", client) for part in client.config.parts)


def forward_all(client: Client, inputs: Inputs) -> Step:
    """Run the forward pass of a local step, and return the step as the parts see it.

    Images that parts add go through the network together with the batch, unless it has batch-norm.
    """
    module, x, y = client.model.module, inputs.x, inputs.y
    extras = {part.name: more for part in client.config.parts if (more := part.ask("extra", client)) is not None}
    together = extras and not client.model.mixes_samples
    everything = torch.cat([x, *extras.values()]) if together else x
    features, logits, ce, *others = client.forward(module, everything, y)
    found = others[0].split([len(more) for more in extras.values()]) if together else map(module, extras.values())
    extra = dict(zip(extras, found, strict=True))
    return Step(x, y, inputs.real_x, inputs.real_y, features=features, logits=logits, ce=ce, extra=extra)


def add_pulls(client: Client) -> dict[str, torch.Tensor]:
    """Add the gradients of the parts' pulls to those of the model's parameters, and return the values to report."""
    model = client.model
    values: dict[str, torch.Tensor] = {}
    for part in client.config.parts:
        weights, start = (flat[None, : model.trainable] for flat in (model.weights, client.global_weights))
        if (pulled := part.ask("pull", [client], weights, start)) is not None:
            value, gradient = pulled
            model.add_gradient(gradient[0])
            if value is not None:
                values[part.name] = value[0]
    return values
