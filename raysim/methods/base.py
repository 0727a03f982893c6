"""The hooks a method is made of. FedAvg is the empty list of parts; every other method adds to it here and there.

A part is a frozen dataclass whose fields are its hyper-parameters. Override the hooks it needs, leave the others.
The client's training loop is in training/client.py, the round loop in engine/simulation.py; a part contains neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from raysim.privacy.figures import Figure

if TYPE_CHECKING:
    import torch

    from raysim.config import RunConfig
    from raysim.engine.server import Server
    from raysim.training.client import Client, Step
    from raysim.training.fused import FusedStep


@dataclass
class Upload:
    """What a client sends besides its model.

    `sum`: tensors the server needs only added over the clients; they are added exactly, at the actors.
    `each`: small things the server needs client by client.
    `rows`: arrives with `each`, but every client may have a number of rows of its own; all other shapes are the same
    for all clients, and --on-client-error says what becomes of one with another.
    `told`: arrives with `each` but is not counted as sent: figures for the record, or what is sent anyway.
    """

    sum: dict[str, torch.Tensor] = field(default_factory=dict)
    each: dict[str, object] = field(default_factory=dict)
    rows: dict[str, torch.Tensor] = field(default_factory=dict)
    told: dict[str, object] = field(default_factory=dict)

    def shapes(self, name: str) -> dict[str, tuple[int | None, ...]]:
        """What every client's upload for the part of this name has in common."""
        found = {f"{name} {key} (summed)": tuple(value.shape) for key, value in self.sum.items()}
        found |= {f"{name} {key}": np.shape(value) for key, value in self.each.items()}
        return found | {f"{name} {key}": (None, *value.shape[1:]) for key, value in self.rows.items()}


@dataclass
class Uploads:
    """What arrived at the server: `sum` over the clients on its device, `each` as (client, dict) in client order.

    The arrays in `each` lie in the host's object store, read-only.
    """

    sum: dict[str, torch.Tensor]
    each: list[tuple[int, dict[str, object]]]

    def stacked(self, name: str, device: torch.device) -> torch.Tensor:
        """One thing of `each`, of all clients, on a device."""
        import torch  # here, since the driver does without

        return torch.as_tensor(np.stack([each[name] for _, each in self.each]), device=device)


@dataclass(frozen=True)
class Part:
    """One composable piece of a method. `self.name` keys its state, uploads, broadcast and random streams."""

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    def check(self, config: RunConfig) -> None:
        """At construction: an InputError, in one line, where it cannot go with the rest of the configuration."""

    # -- server ------------------------------------------------------------------------------------------------

    def setup(self, server: Server) -> None:
        """Once, before the first round: fill `server.state[self.name]`."""

    def exchange(self, server: Server, t: int, i: int) -> str | None:
        """'all' or 'cohort' for an extra pass over these clients now (the i-th of round t), or None."""

    def receive(self, server: Server, replies: Uploads) -> None:
        """After such a pass."""

    def broadcast(self, server: Server) -> dict[str, object]:
        """Arrays and scalars for the clients; they find them in `client.broadcast[self.name]`."""
        return {}

    def route(self, server: Server, t: int, clients: list[int]) -> dict[int, int] | None:
        """Which of the server's models each client trains, if not the first."""

    def update(self, server: Server, uploads: Uploads) -> None:
        """After averaging."""

    def sample_features(self, server: Server, count: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Features and their labels from a generator it has, to be looked at."""

    def shared_means(self, server: Server) -> tuple[torch.Tensor, torch.Tensor] | None:
        """After the last round, to be attacked: what was shared in the space of features, and its classes.

        By default the prototypes in the server's state, as `class_means` leaves them there. What else a row has comes
        after its features. Images given to `server.share` are found without this.
        """
        held = server.state[self.name]
        if "prototypes" not in held:
            return None
        known = held["known"].nonzero().flatten()
        return held["prototypes"][known], known

    def certificate(self, server: Server) -> list[Figure]:
        """After the last round: ε of what its clients shared besides the model (privacy/accounting.py), or why none."""
        return [Figure("epsilon", None, note="no certificate: nothing bounds what one sample changes")]

    # -- client ------------------------------------------------------------------------------------------------

    group = 1  # clients per `reply`; a part that computes for several at once makes it a setting
    reported = True  # whether its loss term stands in the metrics
    replies_with_model = True  # whether clients need the global model in its exchanges, and so download it

    def reply(self, clients: list[Client]) -> list[Upload]:
        """In an exchange pass, for a fixed group of clients holding the global model: one upload each."""
        return [Upload() for _ in clients]

    def begin(self, client: Client) -> None:
        """Before the local steps."""

    def batch(self, client: Client, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Every step, chained over the parts: the batch to train on; y may become soft labels."""
        return x, y

    def ce_weight(self, client: Client) -> float:
        """Every step: a factor on the cross-entropy, multiplied over the parts."""
        return 1.0

    def loss(self, client: Client, step: Step) -> torch.Tensor | None:
        """Every step: a scalar term, added; None where its weight is 0, so that it costs nothing."""

    def fused_loss(self, clients: list[Client], step: FusedStep) -> torch.Tensor | None:
        """`loss` for the clients of one vectorised step (--fuse), a value each; a part with `loss` needs it there."""

    def weight(self, client: Client) -> float | None:
        """After the local steps: the aggregation weight, if not what --weighting gives."""

    def end(self, client: Client) -> Upload | None:
        """After the local steps: what is sent besides the model."""

    # -- both --------------------------------------------------------------------------------------------------

    predicts_with_personal = False  # so that only the clients' own models can be evaluated

    def personal(self, module: torch.nn.Module, t: int) -> tuple[str, ...]:
        """Name patterns (fnmatch) of parameters and buffers that stay in the client's state in round t."""
        return ()

    def predict(self, models: list, x: torch.Tensor) -> torch.Tensor:
        """At evaluation: logits from the server's models, if not those of the first."""
        return models[0](x)


def overrides(part: Part, hook: str) -> bool:
    """Whether the part does something in this hook; a hook nobody overrides costs no message."""
    return getattr(type(part), hook) is not getattr(Part, hook)


def can_fuse(part: Part) -> bool:
    """Whether the part's loss, if it has one, is also written for several clients at once, and by the same class."""
    written = next(cls for cls in type(part).__mro__ if {"loss", "fused_loss"} & vars(cls).keys())
    return "fused_loss" in vars(written)
