"""RoundMetrics: everything one round reports, in one record that all readers share.

To add a metric of the engine, add a field here and set it in the `count_…` method that is given what it is made of.
It is then in metrics.jsonl and in every tracker, and in Ray's metrics if it says so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from itertools import pairwise
from typing import Any

from raysim.engine.failures import FaultCount
from raysim.engine.messages import LOSS_BITS, Reports
from raysim.measures import feature_kl

FORMAT = 1  # of a line of metrics.jsonl
RARE = ("skipped", "gpu_bytes")  # metrics that are left out of a line where they say nothing


def metric(
    about: str, default: Any = None, *, factory: Callable[[], Any] | None = None, gauge: str = "", counter: str = "",
    tag: str = "",
) -> Any:  # fmt: skip
    """A field of RoundMetrics: what it means, and as which gauge or counter of Ray it is reported, if any.

    A metric that is a dict becomes one series per key, under this tag.
    """
    metadata = {"about": about, "gauge": gauge, "counter": counter, "tag": tag}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class RoundMetrics(Mapping[str, Any]):
    """The metrics of one round: a line of metrics.jsonl, and what progress, Ray metrics, tables and reports read.

    It can also be read as a mapping with the keys of the line.

    >>> metrics = RoundMetrics(round=1, clients=4, reported={"hfmds.psnr": 9.8})
    >>> metrics["clients"], metrics["hfmds.psnr"]
    (4, 9.8)
    """

    round: int = metric("the last finished round", 0, gauge="round")
    accuracy: float | None = metric(
        "accuracy on the test split, 0 to 1", gauge="accuracy"
    )  # None: the round was not evaluated
    loss: float | None = metric("cross-entropy on the test split", gauge="loss")  # None also where it is not finite
    clients: int = metric("clients that took part", 0)
    bytes_up: int = metric("bytes the clients sent", 0, counter="bytes_up")
    bytes_down: int = metric("bytes sent to the clients", 0, counter="bytes_down")
    gflops: dict[str, float] = metric(
        "of one client, by what it does; training is counted in the last round", factory=dict
    )
    reported: dict[str, float | None] = metric(
        "what parts put into server.metrics, by name; None where it was not finite", factory=dict
    )
    train_loss: float | None = metric("the clients' mean cross-entropy in local training", gauge="train_loss")
    terms: dict[str, float | None] = metric(
        "the clients' mean of each further loss term; None where it was not finite",
        factory=dict,
        gauge="term",
        tag="term",
    )
    phases: dict[str, float] = metric(
        "seconds that each phase of the round took", factory=dict, gauge="phase_seconds", tag="phase"
    )
    seconds: float = metric("seconds that the round took", 0.0, gauge="round_seconds")
    failures: int = metric("actors lost and clients that failed", 0, counter="failures")
    retries: int = metric("clients that were run again, for their own failure or their actor's", 0, counter="retries")
    skipped: int = metric("clients left out because their code kept failing", 0)
    gpu_bytes: int | None = metric(
        "most bytes of a GPU that a client actor has held so far, without its CUDA context", gauge="gpu_bytes"
    )  # None: there is no GPU
    timeline: dict[str, Any] = field(default_factory=dict, compare=False)  # who worked when: a line of timeline.jsonl

    # -- filled by the simulation, from what the actors and the server answer ------------------------------------------

    def count_pass(self, reports: Reports) -> None:
        """Take in what the clients of a pass sent."""
        self.bytes_up += reports.bytes_up
        self.gpu_bytes = max(self.gpu_bytes or 0, reports.gpu_bytes) or None

    def count_exchange(self, part: str, reports: Reports) -> None:
        """Take in the clients' reports of a part's exchange."""
        self.gflops[part] = self.gflops.get(part, 0.0) + _counted_gflops(reports)[0]

    def count_training(self, reports: Reports) -> None:
        """Take in the clients' reports of local training."""
        self.train_loss, self.terms = _mean_losses(reports)

    def count_operations(self, reports: Reports, samples: float | None) -> None:
        """Take in the report of a client whose operations in local training were counted.

        They are scaled to a client with this many samples; with None they stand as they are, since a fixed number of
        steps does not depend on samples.
        """
        gflops, own = _counted_gflops(reports)
        self.gflops["training"] = gflops * (1.0 if samples is None else samples / own)

    def count_evaluation(self, batches: list[tuple[int, int | None]], images: int) -> None:
        """Take in each test batch's correct predictions and summed loss (None: it is not finite)."""
        losses = [loss for _, loss in batches if loss is not None]
        self.accuracy = sum(correct for correct, _ in batches) / images
        self.loss = sum(losses) / 2.0**LOSS_BITS / images if len(losses) == len(batches) else None

    def count_time(self, times: list[tuple[str, float]]) -> None:
        """Take in when the round began and when each phase ended, by the monotonic clock."""
        self.phases = {name: round(end - start, 4) for (_, start), (name, end) in pairwise(times)}
        self.seconds = round(times[-1][1] - times[0][1], 4)

    def count_more_time(self, phase: str, seconds: float) -> None:
        """Take in a phase after the round's end: its last one turned out to be missing."""
        self.phases[phase] = round(seconds, 4)
        self.seconds = round(self.seconds + seconds, 4)

    def count_faults(self, before: FaultCount, now: FaultCount) -> None:
        """Take in what has failed between two counts."""
        self.failures += now.failures - before.failures
        self.retries += now.retries - before.retries

    @property
    def is_complete(self) -> bool:
        """Whether it has what every last round has: an evaluation, and counted operations of training."""
        return self.accuracy is not None and "training" in self.gflops

    # -- as a line of metrics.jsonl ------------------------------------------------------------------------------------

    def to_line(self) -> dict[str, Any]:
        """The line of metrics.jsonl: what the parts reported stands beside the engine's own fields."""
        line: dict[str, Any] = {"format": FORMAT}
        for each in declared():
            if each.name == "reported":
                line |= self.reported
            elif each.name not in RARE or getattr(self, each.name):
                line[each.name] = getattr(self, each.name)
        return line

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> RoundMetrics:
        """Make the metrics of a round from its line of metrics.jsonl."""
        own = {each.name for each in declared()} - {"reported"}
        reported = {key: value for key, value in line.items() if key not in own and key != "format"}
        return cls(**{key: value for key, value in line.items() if key in own}, reported=reported)

    def __getitem__(self, key: str) -> Any:
        return self.to_line()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_line())

    def __len__(self) -> int:
        return len(self.to_line())


def declared() -> list[Field[Any]]:
    """The fields that are metrics, in their order in the line."""
    return [each for each in fields(RoundMetrics) if "about" in each.metadata]


# What only the engine may call a metric: its fields, and what it reports beside the parts.
ENGINE_NAMES = {"format", "shared_bytes", feature_kl.NAME, *(each.name for each in fields(RoundMetrics))}


def is_evaluated(every: int, t: int) -> bool:
    """Whether round t is evaluated with this --eval-every, however many rounds follow."""
    return bool(every) and t % every == 0


def evaluated(history: Sequence[RoundMetrics], every: int) -> list[RoundMetrics]:
    """The rounds by which a run is judged: those that --eval-every asks for, and the last.

    The last of a run that was extended later is not among them: a run that was as long from the start has it not.
    """
    return [
        metrics for metrics in history
        if metrics.accuracy is not None and (metrics is history[-1] or is_evaluated(every, metrics.round))
    ]  # fmt: skip


def late_mean(accuracies: list[float]) -> float:
    """The mean accuracy of the last quarter of the evaluated rounds, since single rounds wander.

    >>> late_mean([0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.6, 0.8])
    0.7
    """
    return statistics.fmean(accuracies[-max(1, len(accuracies) // 4) :])


def _mean_losses(reports: Reports) -> tuple[float | None, dict[str, float | None]]:
    """The clients' mean cross-entropy, and that of each further term, weighted by samples.

    `fsum` rounds once, so the order of the clients does not matter. A client that was skipped has no samples.
    """
    if len(reports.skipped) == len(reports.clients):
        return None, {}
    total = sum(reports.samples)
    means: dict[str, float | None] = {}
    for name, terms in sorted(reports.terms.items()):
        found = [s * term for s, term in zip(reports.samples, terms, strict=True) if term is not None]
        means[name] = math.fsum(found) / total if all(map(math.isfinite, found)) else None
    return means.pop("ce"), means


def _counted_gflops(reports: Reports) -> tuple[float, int]:
    """The GFLOPs of the client whose operations were counted, and its samples."""
    if not reports.flops:  # the client may have been skipped
        return 0.0, 1
    client = min(reports.flops)
    return reports.flops[client] / 1e9, reports.samples[reports.clients.index(client)]
