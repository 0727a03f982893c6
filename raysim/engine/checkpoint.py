"""Checkpoint: what a run keeps of a round, to go on from there (storage/checkpoints.py writes and reads it)."""

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa


@dataclass
class Checkpoint:
    """What was kept after round `round`."""

    round: int
    server: dict[str, Any]  # weights and the parts' state
    states: list[list[tuple[int, dict[str, Any]]]] = field(default_factory=list)  # clients with their states, by file
    shared: dict[str, tuple[int, pa.Table]] = field(default_factory=dict)  # part -> round it is from, table
    metrics: str = ""  # the digest of the rounds' lines in metrics.jsonl
    begun: dict[str, Any] | None = None  # what was done of the next round, where that is between two exchanges
