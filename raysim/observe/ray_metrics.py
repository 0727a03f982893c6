"""The metrics of a run as metrics of Ray, for Prometheus and Grafana (cluster/monitoring/).

Ray exports them at each node's metrics port under these names with `ray_` before them. Every value of a tag stays a
series for as long as Prometheus keeps it, so the tags are few: the run, the names of loss terms and phases, the actors.
"""

from pathlib import Path
from typing import Any

from ray.util.metrics import Counter, Gauge

from raysim.engine.callbacks import Callback
from raysim.engine.ray_runner.actor_metrics import ACTOR_GAUGES
from raysim.engine.round_metrics import RoundMetrics

RUN_GAUGES = {
    "raysim_round": "the last finished round",
    "raysim_accuracy": "accuracy on the test split, 0 to 1",
    "raysim_loss": "cross-entropy on the test split",
    "raysim_train_loss": "the clients' mean cross-entropy in local training",
    "raysim_term": "the clients' mean of each further loss term",
    "raysim_clients_per_second": "clients trained per second of the round",
    "raysim_round_seconds": "how long the round took",
    "raysim_phase_seconds": "how long each of its phases took",
    "raysim_psnr": "similarity of synthetic images to the real ones, in dB",
    "raysim_generator": "the generator's losses and the distances of its features",
    "raysim_shared_bytes": "bytes of the synthetic dataset in the object store, once per node",
}
GAUGES = RUN_GAUGES | ACTOR_GAUGES
COUNTERS = {
    "raysim_failures_total": "actors lost and clients that failed",
    "raysim_retries_total": "clients that were run again, for their own failure or their actor's",
    "raysim_bytes_up_total": "bytes the clients sent",
    "raysim_bytes_down_total": "bytes the clients were sent",
}
TAGS: dict[str, tuple[str, ...]] = {  # beside `run`
    "raysim_term": ("term",), "raysim_phase_seconds": ("phase",), "raysim_generator": ("term",),
    "raysim_actor_round": ("actor",), "raysim_actor_client": ("actor",),
}  # fmt: skip


def _tag_keys(name: str) -> tuple[str, ...]:
    return ("run", *TAGS.get(name, ()))


def _of_generator(metrics: RoundMetrics) -> dict[str, float]:
    """What a part reported as `generator.NAME`, by NAME."""
    prefix = "generator."
    return {key.removeprefix(prefix): value for key, value in metrics.reported.items() if key.startswith(prefix)}


class RayMetrics(Callback):
    """Reports every round of one run to Ray. Rounds that are repeated count again, since their work was done again."""

    def on_start(self, settings: dict[str, Any], out: Path) -> None:
        self.gauges = {name: Gauge(name, about, tag_keys=_tag_keys(name)) for name, about in RUN_GAUGES.items()}
        self.counters = {name: Counter(name, about, tag_keys=_tag_keys(name)) for name, about in COUNTERS.items()}
        for metric in (*self.gauges.values(), *self.counters.values()):
            metric.set_default_tags({"run": out.name})

    def on_round(self, metrics: RoundMetrics) -> None:
        values = {
            "round": metrics.round,
            "accuracy": metrics.accuracy,
            "loss": metrics.loss,
            "train_loss": metrics.train_loss,
            "psnr": metrics.reported.get("psnr"),
            "shared_bytes": metrics.reported.get("shared_bytes"),
            "round_seconds": metrics.seconds,
            "clients_per_second": metrics.clients / max(metrics.seconds, 1e-4),
        }
        for name, value in values.items():
            self.gauges[f"raysim_{name}"].set(value)  # None leaves a gauge as it is
        by_tag = {
            "raysim_term": metrics.terms,
            "raysim_phase_seconds": metrics.phases,
            "raysim_generator": _of_generator(metrics),
        }
        for name, tagged in by_tag.items():
            for tag, value in tagged.items():
                self.gauges[name].set(value, {TAGS[name][0]: tag})
        counts = {
            "failures": metrics.failures,
            "retries": metrics.retries,
            "bytes_up": metrics.bytes_up,
            "bytes_down": metrics.bytes_down,
        }
        for name, count in counts.items():
            if count:  # Ray's counters refuse 0
                self.counters[f"raysim_{name}_total"].inc(count)
