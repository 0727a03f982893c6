"""What travels between driver, server and client actors."""

from dataclasses import dataclass, field

from raysim.errors import RaysimError

TRIES = 4  # times in a row that a group of clients may take its actor down, or a round the server, before the run stops
LOSS_BITS = 20  # of the evaluation loss, which is summed over test batches as whole numbers


@dataclass(frozen=True)
class Broadcast:
    """What the actors need to know for one pass over clients or test batches. Small: the arrays are references."""

    t: int  # round, from 1
    version: int  # a new one for every pass; actors keep what they fetched under it
    weights: object  # reference to the server's models, a list of flat float32 arrays
    extras: object = None  # reference to part -> what its `broadcast` gave
    shared: object = None  # part -> reference to the dataset it shares with all clients
    cohort: int = 1  # clients in this pass
    total_weight: float = 1.0  # their aggregation weights together, as planned
    counted: int | None = None  # client whose floating-point operations are counted
    profiled: int | None = None  # client whose work is profiled
    route: dict[int, int] = field(default_factory=dict)  # client -> index of the model it trains, if not 0


@dataclass(frozen=True)
class ClientReport:
    """What the driver hears of one client's pass."""

    client: int
    samples: int = 0
    terms: dict[str, float] = field(default_factory=dict)  # mean of each loss term over the local steps
    bytes_up: int = 0
    shapes: dict[str, tuple] = field(default_factory=dict)  # of what it sent and every client sends alike; None: any
    flops: float = 0.0  # of its work in this pass; counted for one client
    profile: tuple[str, str] | None = None  # table and Chrome trace, of the one that was profiled
    errors: tuple[str, ...] = ()  # what its own code raised, time after time
    skipped: bool = False  # whether it is left out of this pass for that
    has_state: bool = False  # whether its state is among those this pass returned


class RunFailure(RaysimError):
    """Something in an actor went wrong. Carries the traceback as text, so that it survives the way to the driver."""

    def __init__(self, message: str, traceback: str):
        super().__init__(message, traceback)
        self.message, self.traceback = message, traceback

    def __str__(self):
        return self.message


class ServerLost(RunFailure):
    """The server actor died, or something it gave is gone: the run goes on from its last checkpoint."""


class OutOfMemory(RunFailure):
    """An actor's GPU has no memory left: not a client's doing, and fewer actors at once may do without."""


class ClientFailure(RunFailure):
    """A client's own code raised, or its update cannot be used."""
