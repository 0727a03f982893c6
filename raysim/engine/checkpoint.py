"""What a checkpoint holds, and what the simulation needs of whoever keeps checkpoints (raysim/storage does)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Checkpoint:
    """Everything a run needs to go on after round `round`."""

    round: int
    server: dict[str, Any]  # weights and the parts' state
    states: list[list[tuple[int, dict[str, Any]]]] = field(default_factory=list)  # clients with their states, by file
    shared: dict[str, tuple[int, pa.Table]] = field(default_factory=dict)  # part -> round it is from, table
    metrics: str = ""  # the digest of the lines of metrics.jsonl up to this round
    begun: dict[str, Any] | None = None  # what was done of the next round, where that stopped between two exchanges
    stopped: dict[str, Any] | None = None  # why the run was ended here, and under which settings of its length


class CheckpointKeeper(Protocol):
    """Keeps checkpoints of a run, written while the run goes on."""

    def save(
        self, t: int, snapshot: Any, states: dict[int, Any], shared: dict[str, Any],
        begun: dict[str, Any] | None = None, stopped: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Begin to write a checkpoint; snapshot, states and shared are references, or hold them."""
        ...

    def load(self) -> Checkpoint | None:
        """The last whole checkpoint."""
        ...

    def wait(self) -> None:
        """Wait until everything given is on the disk; raises what went wrong."""
        ...
