"""The metrics of a run as metrics of Ray, for Prometheus and Grafana (cluster/monitoring/).

Ray exports them at each node's metrics port under these names with `ray_` before them. Every value of a tag stays a
series for as long as Prometheus keeps it, so the tags are few: the run, the names of loss terms and phases, the actors.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.util.metrics import Counter, Gauge

from raysim.engine.callbacks import Callback
from raysim.engine.ray_runner.actor_metrics import ACTOR_GAUGES
from raysim.engine.round_metrics import RoundMetrics, declared

# Those of RoundMetrics say themselves under which name they are reported. Further ones:
FURTHER_GAUGES = {
    "clients_per_second": "clients trained per second of the round",
    "psnr": "similarity of synthetic images to the real ones, in dB",
    "generator": "the generator's losses and the distances of its features",
    "shared_bytes": "bytes of the synthetic dataset in the object store, once per node",
}
_METRICS = [each.metadata for each in declared()]
RUN_GAUGES = {f"raysim_{each['gauge']}": each["about"] for each in _METRICS if each["gauge"]}
RUN_GAUGES |= {f"raysim_{name}": about for name, about in FURTHER_GAUGES.items()}
GAUGES = RUN_GAUGES | ACTOR_GAUGES
COUNTERS = {f"raysim_{each['counter']}_total": each["about"] for each in _METRICS if each["counter"]}
TAGS = {f"raysim_{each['gauge']}": each["tag"] for each in _METRICS if each["tag"]}  # beside `run`
TAGS |= {"raysim_generator": "term"} | dict.fromkeys(ACTOR_GAUGES, "actor")


def _tag_keys(name: str) -> tuple[str, ...]:
    return ("run", TAGS[name]) if name in TAGS else ("run",)


class RayMetrics(Callback):
    """A callback that reports every round to Ray; repeated rounds count again, since their work was done again."""

    def on_start(self, settings: dict[str, Any], out: Path) -> None:
        self.gauges = {name: Gauge(name, about, tag_keys=_tag_keys(name)) for name, about in RUN_GAUGES.items()}
        self.counters = {name: Counter(name, about, tag_keys=_tag_keys(name)) for name, about in COUNTERS.items()}
        for metric in (*self.gauges.values(), *self.counters.values()):
            metric.set_default_tags({"run": out.name})

    def on_round(self, metrics: RoundMetrics) -> None:
        for each in declared():
            if name := each.metadata["gauge"]:
                self._set(f"raysim_{name}", getattr(metrics, each.name))
            elif (name := each.metadata["counter"]) and (count := getattr(metrics, each.name)):  # Ray's refuse 0
                self.counters[f"raysim_{name}_total"].inc(count)
        self._set("raysim_clients_per_second", metrics.clients / max(metrics.seconds, 1e-4))
        for name in ("psnr", "shared_bytes"):
            self._set(f"raysim_{name}", metrics.reported.get(name))
        prefix = "generator."
        reported = metrics.reported.items()
        self._set("raysim_generator", {key.removeprefix(prefix): v for key, v in reported if key.startswith(prefix)})

    def _set(self, name: str, value: float | Mapping[str, float | None] | None) -> None:
        """Set a gauge, or one per key of a dict; None leaves it as it is."""
        if isinstance(value, Mapping):
            for tag, inner in value.items():
                self.gauges[name].set(inner, {TAGS[name]: tag})
        else:
            self.gauges[name].set(value)
