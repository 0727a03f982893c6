"""Local training of several clients in one vectorised step (--fuse): few large operations in place of many small ones.

Every client has its own row of weights, gradients and optimiser state, so its result is independent of the others but
for the last bits. The clients of a group are sorted by their number of steps: those still training are the first
rows, and the others take no step. Shorter batches are padded, and padding counts nothing.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from raysim.errors import InputError
from raysim.models.flat import FlatModel
from raysim.models.stacked import StackedBatchNorm2d, stacked
from raysim.training.client import Client, make_optimizer
from raysim.training.device import autocast


class Stack:
    """A model with a row of flat weights per client: row i of `weights` is the i-th client's."""

    def __init__(self, model: FlatModel, size: int, name: str):
        self.model = model
        self.module: Any = stacked(model.module, name).train()
        trainable = model.trainable
        self.weights = model.weights.repeat(size, 1)
        self.gradients = self.weights.new_zeros(size, trainable)
        self.rows = [torch.nn.Parameter(row[:trainable]) for row in self.weights]
        self.normalising = [layer for layer in self.module.modules() if isinstance(layer, StackedBatchNorm2d)]

    def load(self, weights: list[torch.Tensor], global_weights: list[torch.Tensor]) -> None:
        """Load the weights that the clients start from, and the global weights that were broadcast to them."""
        torch.stack(weights, out=self.weights[: len(weights)])
        self.global_weights = torch.stack(global_weights)

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

    @property
    def global_parameters(self) -> list[torch.Tensor]:
        """The broadcast parameters, in the order of `parameters`."""
        weights = self.global_weights[: self.clients]
        return [self.model.view(weights, name) for name in self.model.parameter_names]

    def features(self, x: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        """Features [clients, batch, features] of x; `share` is the weight of a sample in its client's mean."""
        for layer in self.normalising:
            layer.share = share
        x = x.permute(0, 2, 3, 4, 1).contiguous().flatten(0, 1).permute(3, 0, 1, 2)  # as models/stacked.py wants it
        return self._by_client(self.module.features(x))

    def head(self, features: torch.Tensor) -> torch.Tensor:
        """Logits [clients, batch, classes] of features [clients, batch, features]."""
        return self._by_client(self.module.head(features.transpose(0, 1).flatten(1)))

    def _by_client(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(1, (self.clients, -1)).transpose(0, 1)

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of one scalar, a sum over the clients; each client's loss affects its own row only."""
        gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
        for slot, gradient in zip(self.slots, gradients, strict=True):
            slot.copy_(gradient)


@dataclass
class FusedStep:
    """One step of several clients as the parts see it: a Step with the clients as first dimension of its tensors.

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


def check(module: torch.nn.Module, name: str, shape: tuple[int, int, int]) -> None:
    """Raise an InputError if this model, of the user's own, computes something else for two clients in one step.

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
    """The clients' batches (x, y) padded to one x and one y, and the weight of each sample in its client's mean."""
    xs, ys = zip(*batches, strict=True)
    lengths = torch.tensor([len(y) for y in ys])[:, None]
    share = (torch.arange(max(map(len, ys))) < lengths) / lengths
    return pad_sequence([*xs], batch_first=True), pad_sequence([*ys], batch_first=True), share.to(ys[0].device)


def cross_entropies(logits: torch.Tensor, labels: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Each client's mean cross-entropy, from logits [clients, batch, classes]; labels may be soft."""
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1), reduction="none")
    return (losses.view_as(share) * share).sum(1)


def train(
    stack: Stack, clients: list[Client], starts: list[torch.Tensor]
) -> list[tuple[Client, torch.Tensor, dict[str, float]]]:
    """Do the local steps from the weights `starts`, and return each client, its trained weights and mean loss terms."""
    config, parts = clients[0].config, clients[0].config.parts
    changes_batches = any(part.overrides("batch") for part in parts)
    batches = {client.id: list(client.batches()) for client in clients}
    ordered = sorted(zip(clients, starts, strict=True), key=lambda pair: -len(batches[pair[0].id]))
    clients, starts = [client for client, _ in ordered], [start for _, start in ordered]
    steps = [len(batches[client.id]) for client in clients]
    stack.load(starts, [client.global_weights for client in clients])
    optimizer = make_optimizer(stack.rows[: len(clients)], config, clients[0].t)
    totals: dict[str, torch.Tensor] = {}
    for at in range(max(steps)):
        active = [client for client, count in zip(clients, steps, strict=True) if count > at]
        if at == 0 or len(active) < stack.clients:
            stack.use(len(active))
        drawn = [(client.x[batches[client.id][at]], client.y[batches[client.id][at]]) for client in active]
        batch = real = pad(drawn)
        if changes_batches:
            for part in parts:
                drawn = [part.batch(client, x, y) for client, (x, y) in zip(active, drawn, strict=True)]
            batch = pad(drawn)
        x, y, share = batch
        with autocast(config, stack.model.device):
            features = stack.features(x, share)
            logits = stack.head(features)
            ce = cross_entropies(logits, y, share)
            real_x, real_y, real_share = real
            step = FusedStep(
                model=stack,
                x=x,
                y=y,
                share=share,
                real_x=real_x,
                real_y=real_y,
                real_share=real_share,
                features=features,
                logits=logits,
                ce=ce,
            )
            loss = ce * ce.new_tensor([math.prod(part.ce_weight(client) for part in parts) for client in active])
            terms = {"ce": ce}
            for part in parts:
                if (term := part.fused_loss(active, step)) is not None:
                    loss = loss + term
                    terms |= {part.name: term} if part.reported else {}
        stack.backward(loss.sum())
        optimizer.step()
        for name, term in terms.items():  # on the device: no transfer per step
            total = totals.setdefault(name, ce.new_zeros(len(clients)))
            total[: len(active)] += term.detach()
    means = {name: (total.cpu() / torch.tensor(steps)).tolist() for name, total in totals.items()}
    return [(client, stack.weights[i], {name: means[name][i] for name in means}) for i, client in enumerate(clients)]
