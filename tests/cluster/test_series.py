"""However many rounds a run has, there are no more series of metrics than its actors and terms make."""

import json
from collections import Counter
from contextlib import nullcontext
from urllib.request import urlopen

import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families

from raysim import single_run as running
from raysim.cli import main
from raysim.engine.ray_runner import cluster

ACTORS = 2
SMALL = [
    "--method", "hfmds+fedpa", "--train-size", "40", "--test-size", "10", "--clients", "4", "--active", "2",
    "--model", "small-cnn", "--local-steps", "1", "--hfmds.every", "5", "--hfmds.steps", "1", "--hfmds.per-client", "1",
    "--fedpa.gen-steps", "1", "--eval-every", "10", "--checkpoint-every", "50", "--lr", "1e-5", "--actors", str(ACTORS),
]  # fmt: skip
# The kinds of calls are the most: 18 by name, each in the states of a task, at its owner and where it runs.
MOST_PER_ACTOR = 150


@pytest.fixture
def quick_ray():
    """A Ray whose processes report every second."""
    ray.init(
        address="local", num_cpus=2, num_gpus=1, include_dashboard=False, object_store_memory=150 * 2**20,
        logging_level="ERROR", runtime_env={"env_vars": cluster.worker_environment()},
        _system_config={"metrics_report_interval_ms": 1000},
    )  # fmt: skip
    yield
    ray.shutdown()


def series() -> Counter:
    """Metric -> how many series the node exports. A histogram's buckets are one."""
    (node,) = ray.nodes()
    with urlopen(f"http://127.0.0.1:{node['MetricsExportPort']}/metrics", timeout=30) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    found = {
        (sample.name, tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le")))
        for family in families
        for sample in family.samples
    }
    return Counter(name for name, _ in found)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_ray")
def test_200_rounds_make_no_more_series_than_20(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "connected", nullcontext)  # to the Ray of this test
    counted: dict[int, Counter] = {}
    tell = running.Metrics.round

    def round_and_count(self, line):
        tell(self, line)
        if line["round"] in (20, 200):
            counted[line["round"]] = series()

    monkeypatch.setattr(running.Metrics, "round", round_and_count)
    assert main(["run", *SMALL, "--rounds", "200", "--out", str(tmp_path / "run")]) == 0
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 200
    early, late = counted[20], counted[200]
    assert len([name for name in late if name.startswith("ray_raysim_")]) >= 14
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["failures"] == 0
    for name, count in late.items():
        assert count <= ACTORS * MOST_PER_ACTOR, name
        if name.startswith("ray_raysim_"):
            assert count <= 3 * ACTORS + 6, name  # terms, phases, actors
        assert count <= 3 * early[name] + 3 * ACTORS, name  # it does not grow with the rounds
