"""The hooks a method is made of. FedAvg is the empty list of parts; every other method adds some.

A part is a frozen dataclass whose fields are its hyper-parameters. Override the hooks you need, and leave the others.
The client's training loop is in training/client.py, the round loop in engine/simulation.py; a part contains neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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

    `sum`: tensors of which the server needs only the sum over the clients; they are added exactly, at the actors.
    `each`: small things that the server needs client by client.
    `rows`: arrays that arrive with `each`, of which every client may send a different number of rows. All other shapes
    must be the same for all clients; --on-client-error decides what happens to a client that deviates.
    `metadata`: arrives with `each` but does not count as sent: figures to record, or what is sent anyway.

    The names in `each`, `rows` and `metadata` share one namespace.
    """

    sum: dict[str, torch.Tensor] = field(default_factory=dict)
    each: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, torch.Tensor] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    def client_by_client(self) -> dict[str, Any]:
        """`each`, `rows` and `metadata` together; a ValueError if two of them have an entry of the same name."""
        found: dict[str, Any] = {}
        for kind in ("each", "rows", "metadata"):
            entries = getattr(self, kind)
            if twice := sorted(found.keys() & entries.keys()):
                raise ValueError(f"upload has '{twice[0]}' in {kind} and in another of each, rows and metadata")
            found |= entries
        return found

    def shapes(self, name: str) -> dict[str, tuple[int | None, ...]]:
        """The shapes that all clients' uploads for the part of this name must have in common."""
        found = {f"{name} {key} (summed)": tuple(value.shape) for key, value in self.sum.items()}
        found |= {f"{name} {key}": np.shape(value) for key, value in self.each.items()}
        return found | {f"{name} {key}": (None, *value.shape[1:]) for key, value in self.rows.items()}


@dataclass
class Uploads:
    """The clients' uploads as they arrive at the server.

    `sum` is the sum over the clients, on the server's device. `each` has (client, its each, rows and metadata) in order
    of clients; these arrays lie in the host's object store and are read-only.
    """

    sum: dict[str, torch.Tensor]
    each: list[tuple[int, dict[str, Any]]]

    def stacked(self, name: str, device: torch.device) -> torch.Tensor:
        """One entry of `each`, of all clients, stacked on a device."""
        import torch  # imported here: the driver does without

        return torch.as_tensor(np.stack([each[name] for _, each in self.each]), device=device)


@dataclass(frozen=True)
class Part:
    """One composable piece of a method. `self.name` keys its state, uploads, broadcast and random streams."""

    @property
    def name(self) -> str:
        """The name of its file."""
        return type(self).__module__.rpartition(".")[2]

    def overrides(self, hook: str) -> bool:
        """Whether the part does something in this hook; a hook that nobody overrides costs no message."""
        return getattr(type(self), hook) is not getattr(Part, hook)

    def check(self, config: RunConfig) -> None:
        """Raise an InputError, in one line, if the part does not go with the rest of the configuration."""

    # -- server ------------------------------------------------------------------------------------------------

    def setup(self, server: Server) -> None:
        """Once, before the first round: fill `server.state[self.name]`."""

    def exchange(self, server: Server, t: int, i: int) -> str | None:
        """Ask for an extra pass over 'all' clients or the 'cohort', the i-th at the start of round t; or None."""

    def receive(self, server: Server, replies: Uploads) -> None:
        """Take the clients' replies of such a pass."""

    def broadcast(self, server: Server) -> dict[str, object]:
        """Arrays and scalars to send to the clients, who find them in `client.broadcast[self.name]`."""
        return {}

    def route(self, server: Server, t: int, clients: list[int]) -> dict[int, int] | None:
        """Which of the server's models each client trains in round t, where it is not the first."""

    def update(self, server: Server, uploads: Uploads) -> None:
        """Update the server's state, and perhaps the models, after averaging."""

    def sample_features(self, server: Server, count: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Features and their labels from the part's generator, if it has one, to be drawn at the end."""

    def shared_means(self, server: Server) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Vectors that clients shared in the space of features, with their classes, to be attacked at the end.

        By default these are the prototypes in the server's state, as `class_means` leaves them there. A row may have
        more columns after its features. Images given to `server.share` are attacked without this.
        """
        held = server.state[self.name]
        if "prototypes" not in held:
            return None
        known = held["known"].nonzero().flatten()
        return held["prototypes"][known], known

    def certificate(self, server: Server) -> list[Figure]:
        """The certified ε of what its clients shared besides the model (privacy/accounting.py), or why none."""
        return [Figure("epsilon", None, note="no certificate: nothing bounds what one sample changes")]

    # -- client ------------------------------------------------------------------------------------------------

    group = 1  # clients per `reply`; a part that computes for several at once makes it a setting
    reported = True  # whether its loss term is among the metrics
    replies_with_model = True  # whether clients need the global model in its extra passes, and so download it

    def reply(self, clients: list[Client]) -> list[Upload]:
        """Answer an extra pass, for a fixed group of clients that hold the global model: one upload each."""
        return [Upload() for _ in clients]

    def begin(self, client: Client) -> None:
        """Prepare the local steps."""

    def batch(self, client: Client, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch to train on, in every step, handed from part to part; y may become soft labels."""
        return x, y

    def ce_weight(self, client: Client) -> float:
        """A factor on the cross-entropy, in every step; those of all parts are multiplied."""
        return 1.0

    def loss(self, client: Client, step: Step) -> torch.Tensor | None:
        """A scalar to add to the loss, in every step; None where its weight is 0, so that it costs nothing."""

    def fused_loss(self, clients: list[Client], step: FusedStep) -> torch.Tensor | None:
        """`loss` for the clients of one vectorised step, a value each; a part with `loss` needs it under --fuse."""

    def weight(self, client: Client) -> float | None:
        """The client's aggregation weight after the local steps, where it is not what --weighting gives."""

    def end(self, client: Client) -> Upload | None:
        """What the client sends besides its model, after the local steps."""

    # -- both --------------------------------------------------------------------------------------------------

    predicts_with_personal = False  # whether only the clients' own models can be evaluated

    def personal(self, module: torch.nn.Module, t: int) -> tuple[str, ...]:
        """Name patterns (fnmatch) of the parameters and buffers that stay in the client's state in round t."""
        return ()

    def predict(self, models: list, x: torch.Tensor) -> torch.Tensor:
        """Logits at evaluation, from the server's models; by default those of the first."""
        return models[0](x)


def can_fuse(part: Part) -> bool:
    """Whether the part's loss, if it has one, is also written for several clients at once, and by the same class."""
    written = next(cls for cls in type(part).__mro__ if {"loss", "fused_loss"} & vars(cls).keys())
    return "fused_loss" in vars(written)
