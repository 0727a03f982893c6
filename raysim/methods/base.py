"""The base class of methods, `Part`, whose hooks the engine calls.

FedAvg has no parts; every other method consists of one or several. A part is a frozen dataclass whose fields are its
hyper-parameters. Override the hooks you need, and leave the others.
The client's training loop is in training/client.py, the round loop in engine/simulation.py; a part contains neither.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.methods.common.contract import HookError, fault, states_of
from raysim.methods.common.uploads import Upload, Uploads
from raysim.privacy.figures import Figure
from raysim.state import check_state

if TYPE_CHECKING:
    import torch

    from raysim.config import RunConfig
    from raysim.engine.server import Server
    from raysim.training.client import Client, Step
    from raysim.training.fused import FusedStep, Stack


@dataclass(frozen=True)
class Part:
    """One composable piece of a method. `self.name` keys its state, uploads, broadcast and random streams."""

    @property
    def name(self) -> str:
        """The name of the part, which is that of its file."""
        return name_of(type(self))

    def overrides(self, hook: str) -> bool:
        """Whether the part overrides this hook; for a hook that no part overrides, no message is sent."""
        return getattr(type(self), hook) is not getattr(Part, hook)

    def ask(self, hook: str, *arguments: Any) -> Any:
        """Call a hook for the engine; what it raises, also for a result of no use, bears the names of part and hook.

        So does what cannot stay in a state, the part's own or another's.
        """
        try:
            found = getattr(self, hook)
            found = found(*arguments) if callable(found) else found
            if wrong := fault(hook, found, arguments):
                raise HookError(wrong)
            for name, state in states_of(hook, arguments) if self.overrides(hook) else ():
                check_state(name, state)
        except BaseException as error:
            if not hasattr(error, "hook"):
                error.hook = self.name, hook  # type: ignore[attr-defined]
            raise
        return found

    def check(self, config: RunConfig) -> None:
        """Raise an InputError of one line if the part cannot be combined with the rest of the configuration."""

    def idle(self, config: RunConfig, sizes: np.ndarray) -> str | None:
        """Why the part never acts in the rounds, cohorts and data (samples per client) of a run; None: it does.

        It completes the sentence "NAME never acts: …", and says what would help.
        """

    # -- server ------------------------------------------------------------------------------------------------

    def setup(self, server: Server) -> None:
        """Fill `server.state[self.name]`, once, before round 1; it may change the models, and share a dataset."""

    def exchange(self, server: Server, t: int, i: int) -> str | None:
        """Request the i-th exchange at the start of round t, over 'all' clients or the 'cohort'; None: no more."""

    @property
    def passes(self) -> int | None:
        """How many exchanges there are before training, where they take long: each is reported then; else None."""
        return None

    def receive(self, server: Server, replies: Uploads) -> None:
        """Process the uploads with which the clients replied in an exchange."""

    def broadcast(self, server: Server) -> dict[str, object]:
        """The arrays and scalars to send to the clients, which find them in `client.broadcast[self.name]`."""
        return {}

    def route(self, server: Server, t: int, clients: list[int]) -> dict[int, int] | None:
        """Client -> index of the server's model that it trains in round t; clients left out train the first."""

    def aggregate(self, server: Server, before: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """The global parameters after a round, from those before it and the mean of the clients'; one part may do this.

        All are flat float32 arrays of the model's parameters, in the order of `server.model.parameter_names`; the hook
        owns `before` and `mean`. Buffers are not among them: batch-norm's statistics are always averaged. What parts
        keep at the clients (`personal`) is equal in both, and stays whatever the hook returns. It is called before
        `update`, once for every model that was trained: `server.averaged_model` is its index, and
        `server.averaged_clients` is how many clients trained it. It may write `server.state[self.name]` and
        `server.metrics`, but not `server.weights`, which takes the result.
        """
        return mean

    def update(self, server: Server, uploads: Uploads) -> None:
        """Update the server's state, and possibly its models, after the clients' models have been averaged.

        `server.weights` has the new global models: flat float32 arrays of all parameters, followed by the
        floating-point buffers; `server.model.trainable` is the number of elements that are parameters, and
        `server.model.spans` says where each name starts. A part may change them, or replace an array by another of its
        size. The weights before the round are gone; what needs them keeps a copy in its state, or is an `aggregate`.
        A part writes only its own `server.state[self.name]`, and may read the others'.
        """

    updates_models = True  # whether `update` may change the models; if no part does, they are evaluated while it runs

    def sample_features(self, server: Server, count: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Features and labels sampled from the part's generator, if it has one, for the drawing by --tsne."""

    def shared_means(self, server: Server) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Vectors in the space of features that clients shared, and their classes, for the privacy attack at the end.

        By default these are the prototypes in the server's state, in the form that `class_means` gives them. A row may
        have more columns after its features. Images given to `server.share` are attacked in any case.
        """
        state = server.state[self.name]
        if "prototypes" not in state:
            return None
        known = state["known"].nonzero().flatten()
        return state["prototypes"][known], known

    def certificate(self, server: Server) -> list[Figure]:
        """The certified ε of the clients' uploads for this part (privacy/accounting.py), or why there is none."""
        return [Figure("epsilon", None, note="no certificate: nothing bounds what one sample changes")]

    def model_certificate(self, server: Server) -> list[Figure]:
        """The certified ε of the model itself, from a part that clips clients' updates and adds noise; one part may."""
        return [Figure("epsilon", None, note="no certificate")]

    # -- client ------------------------------------------------------------------------------------------------

    def group_size(self, config: RunConfig) -> int:
        """How many clients `reply` is called for at once; more if computing for several together is faster."""
        return 1

    reported = True  # whether the part's loss term is among the metrics
    adds_samples = False  # whether `batch` may add --unlabelled-batch samples to a batch
    replies_with_model = True  # whether clients need the global model in the part's exchanges, and so download it

    def reply(self, clients: list[Client]) -> list[Upload]:
        """The uploads of a fixed group of clients in an exchange, one each; their model has the global weights."""
        return [Upload() for _ in clients]

    def begin(self, client: Client) -> None:
        """Prepare the client's local steps."""

    def batch(self, client: Client, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch to train on in a local step, passed on from part to part; y may become soft labels."""
        return x, y

    def extra(self, client: Client) -> torch.Tensor | None:
        """Images to pass through the network in a local step beside the batch; not asked for with --fuse.

        `loss` finds their logits in `step.extra[self.name]`. One pass for all images costs less than several.
        """

    def ce_weight(self, client: Client) -> float:
        """The factor on the cross-entropy in a local step; the factors of all parts are multiplied."""
        return 1.0

    def loss(self, client: Client, step: Step) -> torch.Tensor | None:
        """The part's scalar term of the loss in a local step; None where its weight is 0, so that it costs nothing."""

    def pull(
        self, clients: list[Client], weights: torch.Tensor, start: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor] | None:
        """A term of the loss that pulls at the parameters themselves: each client's value, and the gradients.

        `weights` and `start` [clients, parameters] are the clients' parameters, flat, as they are in this local step
        and as they were broadcast; alone a client is the only row. So one form serves with and without --fuse, and a
        term costs a few operations in place of several for every parameter. The value is None if it says nothing.
        """

    def begin_fused(self, clients: list[Client], stack: Stack) -> None:
        """Prepare the vectorised steps of clients that have begun, who are in the order of the stack's rows.

        What all of them need together is kept in `stack.scratch[self.name]`.
        """

    def fused_loss(self, clients: list[Client], step: FusedStep) -> torch.Tensor | None:
        """`loss` for the clients of one vectorised step, a value per client; --fuse needs it beside `loss`."""

    def weight(self, client: Client) -> float | None:
        """The client's aggregation weight, asked for after the local steps; None for the one that --weighting gives."""

    def end(self, client: Client) -> Upload | None:
        """The client's upload besides its model, after the local steps; None if there is none."""

    # -- both --------------------------------------------------------------------------------------------------

    goes_by_rounds = False  # whether what it does in a round depends on --rounds: then a run cannot be extended
    predicts_with_personal = False  # whether only the clients' own models can be evaluated

    def personal(self, module: torch.nn.Module, t: int) -> tuple[str, ...]:
        """Name patterns (fnmatch) of the parameters and buffers that stay in the client's state in round t."""
        return ()

    def predict(self, models: list, x: torch.Tensor) -> torch.Tensor:
        """The logits for x at evaluation, from the server's models; by default those of the first model."""
        return models[0](x)


def name_of(cls: type[Part]) -> str:
    """The name of a part: that of its file, or of its class where that is in a notebook or a script."""
    file = cls.__module__.rpartition(".")[2]
    return cls.__name__.lower() if file == "__main__" else file


def balanced_group(clients: int, most: int) -> int:
    """How many clients to put in a group, at most so many, if actors are to finish together.

    The groups are a multiple of four: two or four actors get equally many, however few clients there are.
    """
    groups = 4 * math.ceil(clients / (4 * most))
    return math.ceil(clients / groups)


def can_fuse(part: Part) -> bool:
    """Whether the class that gives the part its `loss` also defines `fused_loss`; true for a part without `loss`."""
    definer = next(cls for cls in type(part).__mro__ if {"loss", "fused_loss"} & vars(cls).keys())
    return "fused_loss" in vars(definer)
