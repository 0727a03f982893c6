"""RoundMetrics: everything one round reports, in one record that all readers share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

FORMAT = 1  # of a line of metrics.jsonl


@dataclass
class RoundMetrics(Mapping[str, Any]):
    """The metrics of one round: a line of metrics.jsonl, and what progress, Ray metrics, tables and reports read.

    To add a metric of the engine, add a field and set it in engine/simulation.py. It can also be read as a mapping
    with the keys of the line.

    >>> metrics = RoundMetrics(round=1, clients=4, reported={"hfmds.psnr": 9.8})
    >>> metrics["clients"], metrics["hfmds.psnr"]
    (4, 9.8)
    """

    round: int
    accuracy: float | None = None  # on the test split, 0 to 1; None where the round was not evaluated
    loss: float | None = None  # cross-entropy on the test split; None also where it is not finite
    clients: int = 0  # that took part
    bytes_up: int = 0  # sent by the clients
    bytes_down: int = 0  # sent to the clients
    gflops: dict[str, float] = field(default_factory=dict)  # of one client, by what it does; training in the last round
    reported: dict[str, float] = field(default_factory=dict)  # what parts put into server.metrics, by name
    train_loss: float | None = None  # the clients' mean cross-entropy in local training
    terms: dict[str, float] = field(default_factory=dict)  # the clients' mean of each further loss term, by part
    phases: dict[str, float] = field(default_factory=dict)  # seconds
    seconds: float = 0.0  # the whole round
    failures: int = 0  # actors lost and clients that failed
    retries: int = 0  # clients that were run again
    skipped: int = 0  # clients left out because their code kept failing
    timeline: dict[str, Any] = field(default_factory=dict, compare=False)  # who worked when: a line of timeline.jsonl

    def to_line(self) -> dict[str, Any]:
        """The line of metrics.jsonl: what the parts reported stands beside the engine's own fields."""
        line: dict[str, Any] = {"format": FORMAT}
        for each in fields(self):
            if each.name == "reported":
                line |= self.reported
            elif each.name != "timeline" and not (each.name == "skipped" and not self.skipped):
                line[each.name] = getattr(self, each.name)
        return line

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> RoundMetrics:
        """The way back; lines without a format are those of raysim 0.1.0, which had the same fields."""
        own = {each.name for each in fields(cls)} - {"reported", "timeline"}
        reported = {key: value for key, value in line.items() if key not in own and key != "format"}
        return cls(**{key: value for key, value in line.items() if key in own}, reported=reported)

    def __getitem__(self, key: str) -> Any:
        return self.to_line()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_line())

    def __len__(self) -> int:
        return len(self.to_line())
