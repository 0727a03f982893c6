"""What a run directory says, read with patience: an unfinished or older run lacks some files."""

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from raysim.data import partitions
from raysim.errors import InputError


@dataclass(frozen=True)
class Run:
    """A run directory's content; what is not there is empty."""

    path: Path
    facts: dict  # config.json
    history: list[dict] = field(default_factory=list)
    summary: dict = field(default_factory=dict)

    @property
    def settings(self) -> dict:
        return self.facts["settings"]

    @property
    def title(self) -> str:
        return f"{self.settings['method']} on {Path(str(self.settings['dataset'])).name}"

    @property
    def setting_text(self) -> str:
        """The federation in words."""
        s = self.settings
        active = "all" if s["active"] in (None, s["clients"]) else f"{s['active']:,}"
        return f"{s['clients']:,} clients ({active} active), {dealt_text(s)}"

    @cached_property
    def evaluated(self) -> list[dict]:
        return [line for line in self.history if line.get("accuracy") is not None]

    def lines(self, name: str) -> list[dict]:
        """A file of JSON lines; a last one that a kill has cut is left out."""
        path = self.path / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        return [json.loads(line) for line in whole.splitlines()]

    def json(self, name: str):
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def labels(self) -> np.ndarray | None:
        """Samples per client and class."""
        path = self.path / "labels.csv"
        return np.loadtxt(path, delimiter=",", dtype=np.int64, ndmin=2) if path.exists() else None


def read_run(path: str | Path) -> Run:
    """A run directory; an InputError if it is none."""
    path = Path(path)
    if not (path / "config.json").exists():
        raise InputError(f"'{path}' is not a run directory: it has no config.json; give the path a run printed")
    run = Run(path, json.loads((path / "config.json").read_text(encoding="utf-8")))
    return Run(path, run.facts, run.lines("metrics.jsonl"), run.json("summary.json") or {})


def dealt_text(settings: dict) -> str:
    """How the samples were dealt, in words."""
    return partitions.from_settings(settings).words()
