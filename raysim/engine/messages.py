"""What travels between driver, server and client actors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

EachUpload = list[tuple[int, dict[str, Any]]] | None  # client -> part -> what travels client by client

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
    """What is to be known of one client's work in a pass."""

    client: int
    samples: int = 0
    seconds: float = 0.0  # that its work took
    terms: dict[str, float] = field(default_factory=dict)  # mean of each loss term over the local steps
    bytes_up: int = 0
    shapes: dict[str, tuple] = field(default_factory=dict)  # of what all clients must send alike; None: any size
    flops: float = 0.0  # of its work in this pass; counted for one client
    profile: tuple[str, str] | None = None  # table and Chrome trace, of the client that was profiled
    errors: tuple[str, ...] = ()  # what its own code raised, once per failure
    skipped: bool = False  # whether it is left out of this pass because of that
    gpu_bytes: int = 0  # the most its actor has held of a GPU's memory so far
    has_state: bool = False  # whether its state is among those this pass returned


@dataclass
class Reports:
    """What the driver learns of the clients of a call, or of a pass, as columns: 10,000 records would cost it 0.1 s."""

    clients: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)  # of each client, as all lists of numbers
    seconds: list[float] = field(default_factory=list)
    terms: dict[str, list[float | None]] = field(default_factory=dict)  # None: the client has no such term
    bytes_up: int = 0  # of all together
    gpu_bytes: int = 0  # the most that one of their actors has held of a GPU's memory so far
    shapes: dict[str, dict[tuple, list[int]]] = field(default_factory=dict)  # what was sent -> shape -> by whom
    uploads: int = 0  # clients that sent something client by client
    with_state: list[int] = field(default_factory=list)  # clients
    skipped: list[int] = field(default_factory=list)  # clients
    errors: dict[int, tuple[str, ...]] = field(default_factory=dict)  # by client, as the next
    flops: dict[int, float] = field(default_factory=dict)
    profile: tuple[str, str] | None = None

    @classmethod
    def of(cls, reports: Sequence[ClientReport]) -> Reports:
        """The reports of several clients."""
        shapes: dict[str, dict[tuple, list[int]]] = {}
        for report in reports:
            for name, shape in report.shapes.items():
                shapes.setdefault(name, {}).setdefault(shape, []).append(report.client)
        names = sorted({name for report in reports for name in report.terms})
        return cls(
            clients=[report.client for report in reports],
            samples=[report.samples for report in reports],
            seconds=[report.seconds for report in reports],
            terms={name: [report.terms.get(name) for report in reports] for name in names},
            bytes_up=sum(report.bytes_up for report in reports),
            gpu_bytes=max((report.gpu_bytes for report in reports), default=0),
            shapes=shapes,
            with_state=[report.client for report in reports if report.has_state],
            skipped=[report.client for report in reports if report.skipped],
            errors={report.client: report.errors for report in reports if report.errors},
            flops={report.client: report.flops for report in reports if report.flops},
            profile=next((report.profile for report in reports if report.profile), None),
        )

    def not_skipped(self) -> list[int]:
        """The clients whose work counts."""
        left_out = set(self.skipped)
        return [client for client in self.clients if client not in left_out] if left_out else self.clients

    @classmethod
    def joined(cls, several: Iterable[Reports]) -> Reports:
        """The reports of several calls, in their order."""
        whole = cls()
        for one in several:
            for name in {*whole.terms, *one.terms}:
                column = whole.terms.setdefault(name, [None] * len(whole.clients))
                column += one.terms.get(name) or [None] * len(one.clients)
            for name, by_shape in one.shapes.items():
                found = whole.shapes.setdefault(name, {})
                for shape, clients in by_shape.items():
                    found.setdefault(shape, []).extend(clients)
            whole.clients += one.clients
            whole.samples += one.samples
            whole.seconds += one.seconds
            whole.bytes_up += one.bytes_up
            whole.gpu_bytes = max(whole.gpu_bytes, one.gpu_bytes)
            whole.uploads += one.uploads
            whole.with_state += one.with_state
            whole.skipped += one.skipped
            whole.errors |= one.errors
            whole.flops |= one.flops
            whole.profile = whole.profile or one.profile
        return whole


class PassAnswer(NamedTuple):
    """What one call of a pass over clients returns; the last two are None where nobody has any."""

    reports: Reports
    uploads: EachUpload
    states: list[tuple[int, dict[str, Any]]] | None  # client -> its new state


class Trained(NamedTuple):
    """Who trained a model in a round."""

    clients: int
    share: float | None  # of the planned weight of all clients that they have; None where a part weighs them


class Hello(NamedTuple):
    """The first words of a client actor."""

    fingerprint: dict[str, object]  # of the device it computes on
    model_bytes: int  # of one model's weights
