"""What travels between driver, server and client actors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

LOSS_BITS = 20  # of the evaluation loss, which is summed over test batches as whole numbers

States = dict[int, Any]  # client -> reference to the list of states in which an earlier pass returned its own


@dataclass(frozen=True)
class Broadcast:
    """What the actors need to know for one pass over clients or test batches. Small: the arrays are references."""

    t: int  # round, from 1
    version: int  # a new one for every pass; actors keep what they fetched under it
    weights: Any  # reference to the server's models, a list of flat float32 arrays
    extras: Any = None  # reference to part -> what its `broadcast` gave
    shared: dict[str, Any] | None = None  # part -> reference to the dataset it shares with all clients
    cohort: int = 1  # clients in this pass
    total_weight: float = 1.0  # their aggregation weights together, as planned
    counted: int | None = None  # client whose floating-point operations are counted
    profiled: int | None = None  # client whose work is profiled
    route: dict[int, int] = field(default_factory=dict)  # client -> index of the model it trains, if not 0


@dataclass(frozen=True)
class ClientReport:
    """What the driver learns of one client's work in a pass."""

    client: int
    samples: int = 0
    terms: dict[str, float] = field(default_factory=dict)  # mean of each loss term over the local steps
    bytes_up: int = 0
    shapes: dict[str, tuple] = field(default_factory=dict)  # of what all clients must send alike; None: any size
    flops: float = 0.0  # of its work in this pass; counted for one client
    profile: tuple[str, str] | None = None  # table and Chrome trace, of the client that was profiled
    errors: tuple[str, ...] = ()  # what its own code raised, once per failure
    skipped: bool = False  # whether it is left out of this pass because of that
    has_state: bool = False  # whether its state is among those this pass returned


class PassAnswer(NamedTuple):
    """What one call of a pass over clients returns; the last two are None where nobody has any."""

    reports: list[ClientReport]
    uploads: list[tuple[int, dict[str, Any]]] | None  # client -> part -> what travels client by client
    states: list[tuple[int, dict[str, Any]]] | None  # client -> its new state


class Hello(NamedTuple):
    """The first words of a client actor."""

    fingerprint: dict[str, object]  # of the device it computes on
    model_bytes: int  # of one model's weights
