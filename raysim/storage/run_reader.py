"""Reading a run directory again. An unfinished run lacks some files, and what they hold is then empty.

A file that does not hold what raysim writes there is a DamagedFile.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from raysim.data import partitions
from raysim.engine.round_metrics import RoundMetrics, evaluated
from raysim.errors import InputError
from raysim.storage.formats import (
    EVENT,
    FEATURES,
    FIGURE,
    PRIVACY,
    TIMELINE,
    DamagedFile,
    read_config,
    read_history,
    read_json,
    read_json_lines,
    read_summary,
)

SHAPES = {
    "events.jsonl": EVENT, "timeline.jsonl": TIMELINE, "features.json": FEATURES, "privacy.json": PRIVACY,
    "measures.json": [FIGURE],
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """The content of a run directory."""

    path: Path
    facts: dict[str, Any]  # config.json
    history: list[RoundMetrics] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by name."""
        return self.facts["settings"]

    @property
    def sources(self) -> dict[str, str]:
        """Digests of what is the user's own and has the same name in runs with another: classes, data in memory."""
        keys = ["model", "partition", *["dataset"] * str(self.settings["dataset"]).startswith("memory:")]
        return {key: digest for key in keys if (digest := self.facts.get("sources", {}).get(key))}

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
        return evaluated(self.history, self.settings["eval_every"])

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The content of a file of JSON lines, without a last line that a kill has cut."""
        return read_json_lines(self.path / name, SHAPES.get(name, dict))

    def json(self, name: str) -> Any:
        """The content of a JSON file, or None where there is no such file."""
        path = self.path / name
        return read_json(path, SHAPES.get(name, dict)) if path.exists() else None

    def timeline(self) -> list[dict[str, Any]]:
        """When which actor worked, round by round."""
        lines = self.lines("timeline.jsonl")
        times = ((start, stop) for line in lines for spans in line["spans"].values() for _, start, stop in spans)
        if any(not 0 <= start <= stop for start, stop in times) or any(line["seconds"] < 0 for line in lines):
            raise DamagedFile(self.path / "timeline.jsonl", "it has times that run backwards")
        return lines

    def features(self) -> dict[str, Any] | None:
        """The map of features: kind -> x, y and label of its points."""
        points, classes = self.json("features.json"), len(self.facts.get("classes", ()))
        for kind, each in (points or {}).items():
            if not len(each["x"]) == len(each["y"]) == len(each["label"]):
                raise DamagedFile(self.path / "features.json", f"'{kind}' has points without a place or a label")
            if any(not 0 <= label < classes for label in each["label"]):
                raise DamagedFile(self.path / "features.json", f"'{kind}' has labels of no class")
        return points

    def labels(self) -> np.ndarray | None:
        """Samples per client and class."""
        path = self.path / "labels.csv"
        if not path.exists():
            return None
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            counts = np.array([[int(count) for count in line.split(",")] for line in lines], np.int64)
        except OSError as error:
            raise DamagedFile(path, f"it cannot be read ({error.strerror})") from None
        except (ValueError, OverflowError):
            raise DamagedFile(path, "it is not a table of whole numbers") from None
        shape = self.settings["clients"], len(self.facts.get("classes", counts.T))
        if counts.shape != shape or counts.min() < 0:
            raise DamagedFile(path, "it is not a row of counts per client, one for each class")
        return counts


def read_run(path: str | PathLike[str]) -> Run:
    """Read a run directory; an InputError if it is none, damaged, or of a newer format."""
    path = Path(path)
    if not (path / "config.json").exists():
        raise InputError(f"'{path}' is not a run directory: it has no config.json; give the path a run printed")
    return Run(path, read_config(path), read_history(path / "metrics.jsonl"), read_summary(path))


def find_runs(paths: Iterable[str | Path]) -> list[Path]:
    """The run directories that are meant: each path is one, or a folder that has some in it, however deep.

    They are in the order of the paths, and within a folder in that of their names; none is there twice.
    """
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        inside = [path] if (path / "config.json").exists() else list(_runs_below(path))
        if not inside:
            raise InputError(f"'{path}' is not a run directory and has none in it; give the path a run printed")
        found |= dict.fromkeys(inside)
    return list(found)


def _runs_below(folder: Path) -> Iterable[Path]:
    """The run directories in a folder. A config.json of something else, such as a model's, makes none."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if "config.json" in files and _is_run(Path(place)):
            folders.clear()
            yield Path(place)


def _is_run(folder: Path) -> bool:
    try:
        return "settings" in read_json(folder / "config.json", dict)
    except DamagedFile:
        return (folder / "metrics.jsonl").exists()  # and whoever reads it says that it is damaged


def dealt_text(settings: dict) -> str:
    """How the samples were dealt, in words."""
    return partitions.from_settings(settings).words()
