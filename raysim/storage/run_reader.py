"""Reading a run directory again. An unfinished or older run lacks some files, and what they hold is then empty."""

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from raysim.data import partitions
from raysim.engine.round_metrics import RoundMetrics
from raysim.errors import InputError
from raysim.storage.formats import read_config, read_metrics


@dataclass(frozen=True)
class Run:
    """The content of a run directory."""

    path: Path
    facts: dict[str, Any]  # config.json
    history: list[RoundMetrics] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by name; those that an older run did not have are the defaults of today."""
        return self.facts["settings"]

    @property
    def title(self) -> str:
        """The run in a few words."""
        return f"{self.settings['method']} on {Path(str(self.settings['dataset'])).name}"

    @property
    def setting_text(self) -> str:
        """The clients and their data in words."""
        s = self.settings
        active = "all" if s["active"] in (None, s["clients"]) else f"{s['active']:,}"
        return f"{s['clients']:,} clients ({active} active), {dealt_text(s)}"

    @cached_property
    def evaluated(self) -> list[RoundMetrics]:
        """The rounds in which the model was evaluated."""
        return [metrics for metrics in self.history if metrics.accuracy is not None]

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The content of a file of JSON lines, without a last line that a kill has cut."""
        return [json.loads(line) for line in _whole_lines(self.path / name)]

    def json(self, name: str) -> Any:
        """The content of a JSON file, or None where there is no such file."""
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def labels(self) -> np.ndarray | None:
        """Samples per client and class."""
        path = self.path / "labels.csv"
        return np.loadtxt(path, delimiter=",", dtype=np.int64, ndmin=2) if path.exists() else None


def read_run(path: str | Path) -> Run:
    """Read a run directory; an InputError if it is none, or of a newer format."""
    path = Path(path)
    if not (path / "config.json").exists():
        raise InputError(f"'{path}' is not a run directory: it has no config.json; give the path a run printed")
    run = Run(path, read_config(path))
    metrics = path / "metrics.jsonl"
    history = [read_metrics(metrics, line) for line in _whole_lines(metrics)]
    return Run(path, run.facts, history, run.json("summary.json") or {})


def _whole_lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def dealt_text(settings: dict) -> str:
    """How the samples were dealt, in words."""
    return partitions.from_settings(settings).words()
