"""MLflow: parameters, metrics of every round, and the report as an artifact.

Where to and as what is for MLflow's own variables to say: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME (`raysim`).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from raysim.engine.callbacks import Callback
from raysim.engine.round_metrics import RoundMetrics
from raysim.observe.figures import figures
from raysim.storage.formats import read_json

TAG = "raysim.run"  # by which a run that is resumed finds its MLflow run again
BATCH = 100  # parameters that MLflow takes at once
LONGEST = 6000  # characters of a parameter


class Mlflow(Callback):
    """A callback that writes one MLflow run, with which a resumed run goes on."""

    def __init__(self) -> None:
        self.run_id = ""

    def on_start(self, settings: dict[str, Any], out: Path) -> None:
        import mlflow
        from mlflow.entities import Metric, Param

        self.client: Any = mlflow.MlflowClient()  # no global state: the user's own MLflow run is left alone
        self.metric, self.out = Metric, out
        name, token = os.environ.get("MLFLOW_EXPERIMENT_NAME", "raysim"), read_json(out / "config.json", {})["run"]
        found = self.client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self.client.create_experiment(name)
        earlier = self.client.search_runs([experiment], f"tags.`{TAG}` = '{token}'")
        if earlier:
            self.run_id = earlier[0].info.run_id
            self.client.update_run(self.run_id, status="RUNNING")
            return
        self.run_id = self.client.create_run(experiment, run_name=out.name, tags={TAG: token}).info.run_id
        values = [Param(key, str(value)[:LONGEST]) for key, value in settings.items()]
        for start in range(0, len(values), BATCH):
            self.client.log_batch(self.run_id, params=values[start : start + BATCH])

    def on_round(self, metrics: RoundMetrics) -> None:
        now = round(1000 * time.time())
        values = [self.metric(name, value, now, metrics.round) for name, value in figures(metrics).items()]
        self.client.log_batch(self.run_id, metrics=values)

    def on_end(self, summary: dict[str, Any]) -> None:
        self.client.set_tag(self.run_id, "model_sha256", summary["model_sha256"])
        self.client.log_artifact(self.run_id, str(self.out / "report.html"))
        self.client.set_terminated(self.run_id)
        self.run_id = ""

    def close(self) -> None:
        if self.run_id:  # the run did not get to its end
            self.client.set_terminated(self.run_id, "KILLED")
