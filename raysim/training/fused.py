"""Local training of several clients in one vectorised step (--fuse): few large operations in place of many small.

Every client has its own row of weights, gradients and optimiser state, so its result is independent of the others but
for the last bits. The clients of a group are sorted by their number of steps: those still training are the first
rows, and the others take no step. Shorter batches are padded, and padding counts nothing.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from raysim.errors import InputError
from raysim.models.flat import FlatModel
from raysim.models.stacked import StackedBatchNorm2d, stacked
from raysim.tensors import upload_all
from raysim.training.client import Client, make_optimizer
from raysim.training.device import autocast, is_accelerator
from raysim.training.shared_images import SharedImages


class Stack:
    """A model with a row of flat weights for each client: row i of `weights` is the i-th client's."""

    def __init__(self, model: FlatModel, size: int, name: str):
        self.model = model
        self.grouped = is_accelerator(model.device)
        self.module: Any = stacked(model.module, name, self.grouped).train()
        trainable = model.trainable
        self.weights = model.weights.repeat(size, 1)
        self.gradients = self.weights.new_zeros(size, trainable)
        self.ones = self.weights.new_ones(size)
        self.rows = [torch.nn.Parameter(row[:trainable]) for row in self.weights]
        self.normalising = [layer for layer in self.module.modules() if isinstance(layer, StackedBatchNorm2d)]
        self.scratch: dict[str, dict[str, Any]] = {}  # part -> what it needs for a group of clients

    def load(self, weights: list[torch.Tensor], global_weights: list[torch.Tensor]) -> None:
        """Load the weights that the clients start from, and the global weights that were broadcast to them."""
        torch.stack(weights, out=self.weights[: len(weights)])
        self.global_weights = torch.stack(global_weights)
        self.scratch = {}

    def use(self, clients: int) -> None:
        """Work on the first `clients` rows; the optimiser skips the others, which have no gradient."""
        self.clients, self.parameters, self.slots = clients, [], []
        for name in self.model.spans:
            view = self.model.view(self.weights[:clients], name)
            if name in self.model.parameter_names:
                view = view.data.requires_grad_()  # .data: batch-norm's statistics change while these are in use
                self.parameters.append(view)
                self.slots.append(self.model.view(self.gradients[:clients], name))
            owner, _, leaf = name.rpartition(".")
            setattr(self.module.get_submodule(owner), leaf, view)
        for i, row in enumerate(self.rows):
            row.grad = self.gradients[i] if i < clients else None

    def features(self, x: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        """Return features [clients, batch, features] of x; `share` is the weight of a sample in its client's mean."""
        for layer in self.normalising:
            layer.share = share
        if self.grouped:
            x = x.transpose(0, 1).flatten(1, 2)  # no copy where the batch was gathered by `Batches`
        else:  # as models/stacked.py wants it
            x = x.permute(0, 2, 3, 4, 1).contiguous().flatten(0, 1).permute(3, 0, 1, 2)
        return self.module.features(x).unflatten(1, (self.clients, -1)).transpose(0, 1)

    def head(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits [clients, batch, classes] of features [clients, batch, features]."""
        return self.module.head.by_client(features)

    def backward(self, losses: torch.Tensor) -> None:
        """Compute the gradients of the clients' losses; each client's loss affects its own row only."""
        gradients = torch.autograd.grad(
            losses, self.parameters, self.ones[: self.clients], allow_unused=True, materialize_grads=True
        )
        torch._foreach_copy_(self.slots, gradients)

    def add_pulls(self, clients: list[Client]) -> dict[str, torch.Tensor]:
        """Add the gradients of the parts' pulls to those of the clients, and return the values to report."""
        values: dict[str, torch.Tensor] = {}
        count, trainable = len(clients), self.model.trainable
        for part in clients[0].config.parts:
            weights, start = (flat[:count, :trainable] for flat in (self.weights, self.global_weights))
            if (pulled := part.ask("pull", clients, weights, start)) is not None:
                value, gradient = pulled
                self.gradients[:count] += gradient
                if value is not None:
                    values[part.name] = value
        return values


class Batches:
    """The batches of all local steps of a group, as rows of one tensor, padded to the longest of each step.

    `rows[i][at]` are the rows of the i-th client in step `at`; clients with more steps come first. The indices and the
    weights of the samples are uploaded at once. Padding repeats the batch, and counts nothing.
    """

    def __init__(self, rows: Sequence[Sequence[np.ndarray]], device: torch.device):
        indices, shares, self.shapes = [], [], []
        for at in range(max(map(len, rows))):
            here = [one[at] for one in rows if len(one) > at]
            longest = max(map(len, here))
            padded = repeated(here)
            lengths = np.array([[len(row)] for row in here])
            indices += [padded.ravel(), padded.T.ravel()]
            shares.append(((np.arange(longest) < lengths) / lengths).astype(np.float32).ravel())
            self.shapes.append((len(here), longest))
        self.indices, self.shares = upload_all(indices, device), upload_all(shares, device)

    def share(self, at: int) -> torch.Tensor:
        """Return the weight of each sample in its client's mean [clients, batch], 0 for padding."""
        return self.shares[at].view(self.shapes[at])

    def rows(self, at: int) -> torch.Tensor:
        """Return the rows of a step [clients, batch]."""
        return self.indices[2 * at].view(self.shapes[at])

    def images(self, x: torch.Tensor, at: int) -> torch.Tensor:
        """Return the rows of x of a step [clients, batch, …], batch first in memory, as accelerators want it."""
        return x[self.indices[2 * at + 1].view(self.shapes[at][::-1])].transpose(0, 1)


@dataclass
class FusedStep:
    """A local step of several clients as the parts see it: a Step whose tensors have the clients as first dimension.

    Batches are padded to the longest. `share` and `real_share` [clients, batch] are the weights of the samples in the
    mean over their client's batch: 1/length, or 0 for padding.
    """

    model: Stack
    x: torch.Tensor
    y: torch.Tensor
    share: torch.Tensor
    real_x: torch.Tensor
    real_y: torch.Tensor
    real_share: torch.Tensor
    features: torch.Tensor
    logits: torch.Tensor
    ce: torch.Tensor
    lengths: list[int]  # of the clients' batches, without padding

    @property
    def real_features(self) -> torch.Tensor:
        """Return the features of the batches as they were, or of their mixtures where a part has mixed images."""
        real = self.real_y.shape[1]
        return self.features if self.features.shape[1] == real else self.features[:, :real]


def repeated(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Return batches of rows, the shorter ones repeated up to the length of the longest."""
    longest = max(map(len, rows))
    return np.stack([row if len(row) == longest else np.resize(row, longest) for row in rows])


def shared_batches(shared: SharedImages, rows: list[list[np.ndarray]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the shared images and labels [clients, batch, …] of each step, where rows[i][at] are the i-th client's."""
    if shared.fits:
        (x, y), batches = shared.whole, Batches(rows, shared.device)
        return ((batches.images(x, at), y[batches.rows(at)]) for at in range(len(batches.shapes)))
    padded = [repeated([one[at] for one in rows if len(one) > at]) for at in range(max(map(len, rows)))]
    flat = zip(padded, shared.batches([batch.ravel() for batch in padded]), strict=True)
    return ((x.unflatten(0, batch.shape), y.unflatten(0, batch.shape)) for batch, (x, y) in flat)


def check(module: torch.nn.Module, name: str, shape: tuple[int, int, int]) -> None:
    """Raise an InputError if this model of the user's computes something else for two clients in one step.

    Its layers may be known and yet its code mix the clients' channels, which no look at the layers can tell.
    """
    model = FlatModel(module.train(), torch.device("cpu"))
    stack = Stack(model, 2, name)
    stack.load([model.weights.clone()] * 2, [model.weights.clone()] * 2)
    stack.use(2)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        x = torch.randn(2, 4, *shape)
        alone = torch.stack([copy.deepcopy(module)(each) for each in x])
        try:
            together = stack.head(stack.features(x, torch.full((2, 4), 0.25)))
            fits = together.shape == alone.shape and torch.allclose(together, alone, 1e-3, 1e-3)
            reason = "its outputs are others then (it mixes channels, or draws at random)"
        except Exception as error:  # noqa: BLE001 - own code may fail in any way on an input it was not written for
            fits, reason = False, f"{type(error).__name__}: {error}"
    if not fits:
        raise InputError(f"--fuse: --model {name} cannot train several clients in one step: {reason}; use --fuse 1")


def pad(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pad the clients' batches (x, y) to one x and one y, with the weight of each sample in its client's mean."""
    xs, ys = zip(*batches, strict=True)
    shares = [y.new_full((len(y),), 1 / len(y), dtype=torch.float32) for y in ys]  # filled there, not uploaded
    x, y, share = (pad_sequence([*values], batch_first=True) for values in (xs, ys, shares))
    return x, y, share


def cross_entropies(logits: torch.Tensor, labels: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Return each client's mean cross-entropy, from logits [clients, batch, classes]; labels may be soft."""
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1), reduction="none")
    return (losses.view_as(share) * share).sum(1)


def train(
    stack: Stack, clients: list[Client], starts: list[torch.Tensor]
) -> list[tuple[Client, torch.Tensor, dict[str, float]]]:
    """Do the local steps from the weights `starts`, and return each client, its trained weights and mean loss terms."""
    config, parts = clients[0].config, clients[0].config.parts
    changes_batches = any(part.overrides("batch") for part in parts)
    ordered = sorted(zip(clients, starts, strict=True), key=lambda pair: -pair[0].steps)
    clients, starts = [client for client, _ in ordered], [start for _, start in ordered]
    stack.load(starts, [client.global_weights for client in clients])
    for part in parts:
        part.ask("begin_fused", clients, stack)
    data, all_x, all_y = joined(clients)
    optimizer = make_optimizer(stack.rows[: len(clients)], config, clients[0].t)
    reported: dict[str, list[torch.Tensor]] = {}
    for at in range(clients[0].steps):
        active = [client for client in clients if client.steps > at]
        if at == 0 or len(active) < stack.clients:
            stack.use(len(active))
        batch = real = data.images(all_x, at), all_y[data.rows(at)], data.share(at)
        lengths = [client.batch_sizes[at] for client in active]
        if changes_batches:
            drawn = [(x[:n], y[:n]) for x, y, n in zip(*real[:2], lengths, strict=True)]
            for part in parts:
                drawn = [part.ask("batch", client, x, y) for client, (x, y) in zip(active, drawn, strict=True)]
            batch, lengths = pad(drawn), [len(y) for _, y in drawn]
        with autocast(config, stack.model.device):
            step = forward(stack, batch, real, lengths)
            weights = {math.prod(part.ask("ce_weight", client) for part in parts) for client in active}
            losses = step.ce if weights == {1} else step.ce * common(weights)
            terms = {"ce": step.ce}
            for part in parts:
                if (term := part.ask("fused_loss", active, step)) is not None:
                    losses = losses + term
                    terms |= {part.name: term} if part.reported else {}
        stack.backward(losses)
        for name, value in stack.add_pulls(active).items():  # of a part that also has a loss both count
            terms[name] = terms[name] + value if name in terms else value
        optimizer.step()
        for name, term in terms.items():
            reported.setdefault(name, []).append(term.detach())
    means = {name: mean_terms(values, clients) for name, values in reported.items()}
    return [(client, stack.weights[i], {name: means[name][i] for name in means}) for i, client in enumerate(clients)]


def joined(clients: list[Client]) -> tuple[Batches, torch.Tensor, torch.Tensor]:
    """Return all clients' images and labels in one tensor each, and their batches of it."""
    first = np.cumsum([0] + [len(client.y) for client in clients])
    rows = [[batch + first[i] for batch in client.batches()] for i, client in enumerate(clients)]
    x, y = (torch.cat([getattr(client, name) for client in clients]) for name in ("x", "y"))
    return Batches(rows, y.device), x.contiguous(), y


def forward(
    stack: Stack, batch: tuple[torch.Tensor, ...], real: tuple[torch.Tensor, ...], lengths: list[int]
) -> FusedStep:
    """Run the forward pass of batches (x, y, share), and return the step as the parts see it."""
    (x, y, share), (real_x, real_y, real_share) = batch, real
    features = stack.features(x, share)
    logits = stack.head(features)
    return FusedStep(
        model=stack, x=x, y=y, share=share, real_x=real_x, real_y=real_y, real_share=real_share,
        features=features, logits=logits, ce=cross_entropies(logits, y, share), lengths=lengths,
    )  # fmt: skip


def common(weights: set[float]) -> float:
    """Return the factor on the cross-entropy, which a method must give to all clients of a group alike."""
    if len(weights) > 1:
        raise ValueError(f"--fuse: clients of one group weigh their cross-entropy by {sorted(weights)}; use --fuse 1")
    return next(iter(weights))


def mean_terms(values: list[torch.Tensor], clients: list[Client]) -> list[float]:
    """Return each client's mean of a loss term; `values` has a tensor for each step, of the clients that took it."""
    columns = pad_sequence(values).tolist()
    return [math.fsum(column) / client.steps for column, client in zip(columns, clients, strict=True)]
