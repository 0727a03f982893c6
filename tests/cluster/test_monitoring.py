"""Prometheus and Grafana: their files name what there is."""

import inspect
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from ray._private import ray_constants
from ray.dashboard.modules.metrics.dashboards import default_dashboard_panels

from raysim.observe.ray_metrics import COUNTERS, GAUGES, TAGS

MONITORING = Path(__file__).parents[2] / "cluster" / "monitoring"
DASHBOARD = json.loads((MONITORING / "grafana" / "dashboards" / "raysim.json").read_text())


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_the_dashboard_uses_metrics_that_exist_and_all_of_ours():
    ours = {f"ray_{name}" for name in GAUGES | COUNTERS}
    of_ray = set(re.findall(r"ray_\w+", inspect.getsource(default_dashboard_panels)))
    used = set(re.findall(r"\bray_\w+", " ".join(expressions())))
    assert {name for name in used if name.startswith("ray_raysim_")} == ours
    assert used - ours <= of_ray
    variable = DASHBOARD["templating"]["list"][0]["query"]["query"]
    assert variable == "label_values(ray_raysim_round, run)"


def test_its_panels_are_whole():
    assert {"uid", "title", "schemaVersion", "panels", "templating", "time"} <= DASHBOARD.keys()
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len({tuple(panel["gridPos"].values()) for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in DASHBOARD["panels"]:
        assert panel["type"] in ("timeseries", "stat")
        for target in panel["targets"]:
            tags = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            (name,) = set(re.findall(r"\bray_(\w+)", target["expr"]))
            if name in GAUGES | COUNTERS:
                assert '{run=~"$run"}' in target["expr"]
                assert tags == ({"run", TAGS[name]} if name in TAGS else {"run"})


def test_grafana_finds_the_dashboard_and_its_source():
    provisioning = MONITORING / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    assert source["url"] == "http://127.0.0.1:9090"
    sources = [panel["datasource"] for panel in DASHBOARD["panels"]]
    sources += [target["datasource"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    assert all(named == {"type": "prometheus", "uid": source["uid"]} for named in sources)
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "raysim.yaml").read_text())["providers"]
    assert provider["type"] == "file"
    folder = provider["options"]["path"].replace("$RAYSIM", str(MONITORING.parents[1]))
    assert (Path(folder) / "raysim.json").exists()


def test_prometheus_reads_the_list_ray_writes():
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    assert config.keys() == {"global", "scrape_configs"}
    (job,) = config["scrape_configs"]
    assert job.keys() == {"job_name", "file_sd_configs"}
    ((path,),) = [found["files"] for found in job["file_sd_configs"]]
    assert Path(path).name == ray_constants.PROMETHEUS_SERVICE_DISCOVERY_FILE


@pytest.mark.skipif(
    not shutil.which("promtool"), reason="prometheus is not installed; on Debian: apt install prometheus"
)
def test_prometheus_takes_the_configuration():
    """tests/cluster/test_watching.py has it collect a running job."""
    config = str(MONITORING / "prometheus.yml")
    done = subprocess.run(["promtool", "check", "config", config], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
