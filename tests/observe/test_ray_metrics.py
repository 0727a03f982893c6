"""What a run reports to Ray is what its node's metrics port says."""

import io
import json
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from raysim import single_run as running
from raysim.config import resolve
from raysim.engine.callbacks import Callback
from raysim.engine.ray_runner import cluster
from raysim.engine.round_metrics import RoundMetrics
from raysim.observe.progress import Reporter
from raysim.observe.ray_metrics import COUNTERS, GAUGES, RayMetrics

SMALL = {
    "method": "hfmds+fedpa", "dataset": "shapes", "train_size": 80, "test_size": 40, "clients": 4, "rounds": 2,
    "model": "small-cnn", "actors": 1, "hfmds.first": 2, "hfmds.steps": 2, "hfmds.per_client": 5, "fedpa.gen_steps": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def quick_ray():
    """A Ray that reports every second and not every ten."""
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, object_store_memory=150 * 2**20, logging_level="ERROR",
        runtime_env={"env_vars": cluster.worker_environment()}, _system_config={"metrics_report_interval_ms": 1000},
    )  # fmt: skip
    yield
    ray.shutdown()


def exported(run: str) -> dict[str, dict[str, float]]:
    """Metric -> value of the tag beside `run` (or "") -> value, as the node exports it."""
    (node,) = ray.nodes()
    with urlopen(f"http://127.0.0.1:{node['MetricsExportPort']}/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    found: dict[str, dict[str, float]] = {}
    for sample in (sample for family in families for sample in family.samples):
        if sample.labels.get("run") == run:
            tag = next((sample.labels[name] for name in ("term", "phase", "actor") if name in sample.labels), "")
            values = found.setdefault(sample.name, {})
            assert tag not in values  # one series each
            values[tag] = sample.value
    return found


def wait_for(run: str, metric: str, value: float) -> dict[str, dict[str, float]]:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = exported(run)
        if found.get(metric, {}).get("") == value:
            return found
        time.sleep(0.5)
    pytest.fail(f"{metric} never became {value}: {found}")


class AfterTwo(Callback):
    def on_round(self, metrics):
        return metrics.round == 2


@pytest.mark.usefixtures("quick_ray")
class TestOnRay:
    def test_a_run_exports_its_last_line(self, tmp_path, monkeypatch):
        """That of a run that ends early, in a round that is evaluated for that reason."""
        monkeypatch.setattr(cluster, "connected", nullcontext)  # to the Ray of this test, which stays to be asked
        ended = {"rounds": 5, "eval_every": 0, "callback": f"{__name__}:AfterTwo"}
        config = resolve([("test", SMALL | ended | {"out": str(tmp_path / "a-run")})])
        _, summary = running.run(config, Reporter(Console(file=io.StringIO())))
        line = json.loads((tmp_path / "a-run" / "metrics.jsonl").read_text().splitlines()[-1])
        found = wait_for("a-run", "ray_raysim_bytes_down_total", summary["bytes_down"])
        nothing_went_wrong = {"ray_raysim_failures_total", "ray_raysim_retries_total"}
        on_cpus = {"ray_raysim_gpu_bytes"}
        assert found.keys() == {f"ray_{name}" for name in GAUGES | COUNTERS} - nothing_went_wrong - on_cpus
        assert found["ray_raysim_actor_round"] == {"client-actor-0": 2}
        assert found["ray_raysim_actor_client"].items() <= {("client-actor-0", client) for client in range(4)}
        images = 4 * 5 * (3 * 32 * 32 * 4 + 3 * 8)  # float32 pixels; label, client and round
        assert found["ray_raysim_shared_bytes"] == {"": images}
        for name in ("round", "accuracy", "loss", "train_loss", "psnr"):
            assert found[f"ray_raysim_{name}"] == {"": pytest.approx(line[name])}
        assert found["ray_raysim_round_seconds"] == {"": pytest.approx(line["seconds"])}
        assert found["ray_raysim_clients_per_second"] == {"": pytest.approx(4 / line["seconds"])}
        assert found["ray_raysim_bytes_up_total"] == {"": summary["bytes_up"]}
        assert found["ray_raysim_term"] == pytest.approx(line["terms"])
        assert found["ray_raysim_generator"].items() >= {"fid": pytest.approx(line["generator.fid"])}.items()
        assert (
            found["ray_raysim_phase_seconds"].items()
            >= {name: pytest.approx(seconds) for name, seconds in line["phases"].items()}.items()
        )

    def test_counters_add_up_and_a_round_without_evaluation_keeps_the_accuracy(self):
        reporting = RayMetrics()
        reporting.on_start({}, Path("runs/made-up"))
        first = RoundMetrics(
            round=1, accuracy=0.5, loss=1.0, train_loss=2.0, phases={"training": 2.0}, clients=10, seconds=2.5,
            failures=3, retries=7, bytes_up=10, gpu_bytes=2**30,
        )  # fmt: skip
        reporting.on_round(first)
        reporting.on_round(replace(first, round=2, accuracy=None, loss=None, failures=1, bytes_up=5))
        found = wait_for("made-up", "ray_raysim_failures_total", 4)
        assert found["ray_raysim_round"] == {"": 2}
        assert found["ray_raysim_accuracy"] == {"": 0.5}
        assert found["ray_raysim_retries_total"] == {"": 14}
        assert found["ray_raysim_bytes_up_total"] == {"": 15}
        assert found["ray_raysim_clients_per_second"] == {"": 4}
        assert found["ray_raysim_gpu_bytes"] == {"": 2**30}
        assert "ray_raysim_psnr" not in found


def test_none_without_ray(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "RayMetrics", None)  # calling it would raise
    config = resolve([("test", SMALL | {"out": str(tmp_path / "run"), "in_process": True, "rounds": 1})])
    running.run(config, Reporter(Console(file=io.StringIO())))
