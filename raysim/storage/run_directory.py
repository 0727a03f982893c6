"""The run directory: the files a run leaves behind, written so that a kill at any moment leaves them readable."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save

from raysim import __version__
from raysim.config import RunConfig, from_record
from raysim.engine.callbacks import Callback
from raysim.engine.round_metrics import RoundMetrics
from raysim.errors import InputError, RaysimError
from raysim.privacy.figures import Figure
from raysim.settings import flag
from raysim.storage.files import append_line, sync, to_json, write_atomically
from raysim.storage.formats import CONFIG_FORMAT, read_config, read_metrics

if TYPE_CHECKING:  # which imports Ray, and the command line sets Ray's environment before that
    from raysim.engine.simulation import Result

FILES = (
    "config.json", "metrics.jsonl", "events.jsonl", "summary.json", "timeline.jsonl", "model.safetensors",
    "labels.png", "labels.csv", "synthetic.parquet", "synthetic.png", "pairs.png", "features.png", "features.json",
    "privacy.json", "report.html", "log.txt",
)  # fmt: skip
FOLDERS = ("checkpoints", "profile", "tensorboard")


def results_folder() -> Path:
    """The folder that relative --out paths are relative to."""
    # A job submitted with --working-dir runs in an uploaded copy that goes with the cluster: results go home instead.
    return Path.home() if "working_dir_files" in Path.cwd().parts else Path.cwd()


def run_directory(config: RunConfig) -> Path:
    """The path of this run's directory; an InputError if it is taken or cannot be written. Creates nothing."""
    name = f"{config.method}-{Path(config.dataset).name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path = results_folder() / (config.out or Path("runs") / name)
    if path.exists() and not path.is_dir():
        raise InputError(f"--out {path} is a file; give a directory")
    if config.resume and (path / "config.json").exists():
        _check_same_run(config, path)
    elif path.is_dir() and any(path.iterdir()) and not (config.resume and _just_begun(path)):
        if not config.overwrite:
            raise InputError(f"--out {path} exists; choose another, add --resume to go on or --overwrite to replace it")
        if not (path / "config.json").exists() and not _just_begun(path):
            raise InputError(f"--out {path} is not a run directory, so --overwrite will not touch it; choose another")
    parent = next(p for p in [path, *path.parents] if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(f"--out {path} cannot be written: no permission in {parent}; choose another")
    return path


def _just_begun(path: Path) -> bool:
    """Whether a run may have been killed here before it wrote config.json: all files have names of a run's files."""
    return all(entry.name.removeprefix(".").removesuffix(".tmp") in FILES for entry in path.iterdir())


def _check_same_run(config: RunConfig, path: Path) -> None:
    """Refuse to go on with other settings than the run began with, as far as they decide its result."""
    before = from_record(read_config(path)["settings"], str(path / "config.json"))
    for key, value in config.identity().items():
        if before.get(key) != value:
            raise InputError(f"--resume: {path} has {flag(key)} {before.get(key)}, not {value}; leave it as it was")


class RunDirectory:
    """Writes the files of one run. Without `resume`, files of an earlier run are removed first."""

    def __init__(self, path: Path, resume: bool = False):
        self.path = path
        self.rounds = 0  # in metrics.jsonl
        self.digests = [hashlib.sha256()]  # of its first 0, 1, 2 … lines
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not resume:
                for name in FILES:
                    (path / name).unlink(missing_ok=True)
                for name in FOLDERS:
                    shutil.rmtree(path / name, ignore_errors=True)
        except OSError as error:
            raise InputError(f"--out {path} cannot be written: {error.strerror}; choose another") from None
        for lines in (path / "events.jsonl", path / "timeline.jsonl"):
            if resume and lines.exists():  # a kill may have cut its last line
                content = lines.read_bytes()
                write_atomically(lines, content[: content.rfind(b"\n") + 1])

    def write_config(self, config: RunConfig, **facts: object) -> None:
        """Write config.json: the settings, what the run was started from, and further facts about it."""
        start = {"format": CONFIG_FORMAT, "settings": config.settings(), "versions": versions(), "git": git_commit()}
        write_atomically(self.path / "config.json", to_json(start | facts))

    def write_metrics(self, metrics: RoundMetrics) -> None:
        """Append the round's line to metrics.jsonl; where the round is repeated, in place of its earlier line."""
        if metrics.round <= self.rounds:
            self.keep(metrics.round - 1)
        self._count(append_line(self.path / "metrics.jsonl", metrics.to_line()))

    def _count(self, line: bytes) -> None:
        self.digests.append(self.digests[-1].copy())
        self.digests[-1].update(line)
        self.rounds += 1

    def keep(self, rounds: int, digest: str = "") -> list[RoundMetrics]:
        """Cut metrics.jsonl back to these rounds, and return them; they must have the digest, if one is given."""
        path = self.path / "metrics.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)[:rounds] if path.exists() else []
        if len(lines) < rounds:
            raise RaysimError(f"{path} has lost rounds ({len(lines)} of {rounds} are left): start the run again")
        self.rounds, self.digests = 0, self.digests[:1]
        for line in lines:
            self._count(line)
        if digest and self.digests[rounds].hexdigest() != digest:
            raise RaysimError(f"{path} is damaged: its first {rounds} lines are not those written; start the run again")
        history = [read_metrics(path, line) for line in lines]
        write_atomically(path, b"".join(lines))
        return history

    def synced_metrics(self, rounds: int) -> str:
        """The digest of these rounds' lines, once they are on the disk: a checkpoint is of no use without them."""
        sync(self.path / "metrics.jsonl")
        return self.digests[rounds].hexdigest()

    def write_timeline(self, line: dict[str, Any]) -> None:
        """Append when which actor worked in a round. Of a round that is repeated, readers take the last line."""
        append_line(self.path / "timeline.jsonl", line)

    def write_event(self, kind: str, details: dict[str, Any]) -> None:
        """Append an event with the time of now."""
        append_line(self.path / "events.jsonl", {"time": round(time.time(), 3), "event": kind} | details)

    def write_privacy(self, figures: list[Figure]) -> None:
        """Write privacy.json."""
        write_atomically(self.path / "privacy.json", to_json([asdict(figure) for figure in figures]))

    def finish(self, models: list[dict[str, np.ndarray]], summary: dict[str, Any]) -> None:
        """Write the final models and the summary, which comes last: its presence means that the run is whole."""
        tensors = models[0] if len(models) == 1 else {f"{i}.{k}": v for i, m in enumerate(models) for k, v in m.items()}
        write_atomically(self.path / "model.safetensors", save(tensors))
        sync(self.path)
        self.write_summary(summary)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json, in place of an earlier one."""
        write_atomically(self.path / "summary.json", to_json(summary))


class Recorder(Callback):
    """Records a run in its directory: metrics, timeline, events, privacy figures, models and summary."""

    def __init__(self, directory: RunDirectory):
        self.directory = directory

    def on_round(self, metrics: RoundMetrics) -> None:
        self.directory.write_metrics(metrics)
        self.directory.write_timeline(metrics.timeline)

    def on_event(self, kind: str, details: dict[str, Any]) -> None:
        self.directory.write_event(kind, details)

    def on_result(self, result: Result) -> dict[str, Any] | None:
        if not result.privacy:
            return None
        self.directory.write_privacy(result.privacy)
        return {"privacy": {figure.name: figure.value for figure in result.privacy}}

    def on_end(self, summary: dict[str, Any]) -> None:
        self.directory.write_summary(summary)


def versions() -> dict[str, str]:
    """The versions of raysim, Python and the packages that decide a result."""
    names = ("ray", "torch", "torchvision", "numpy")
    return {"raysim": __version__, "python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in names
    }


def git_commit() -> str | None:
    """The commit of the source this runs from, if it is a checkout; `-dirty` marks uncommitted changes."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
