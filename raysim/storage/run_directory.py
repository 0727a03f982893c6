"""The run directory: the files a run leaves behind, written so that a kill at any moment leaves them readable."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import secrets
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save

from raysim import __version__
from raysim.config import RunConfig, from_record
from raysim.engine.callbacks import Callback
from raysim.engine.round_metrics import RoundMetrics
from raysim.engine.stopping import length_settings, reason_to_stop
from raysim.errors import InputError, RaysimError
from raysim.privacy.figures import Figure
from raysim.settings import flag
from raysim.storage import run_files
from raysim.storage.files import append_line, sync, to_json, write_atomically
from raysim.storage.formats import (
    CONFIG_FORMAT,
    DamagedFile,
    read_config,
    read_history,
    read_json,
    read_metrics,
    read_summary,
)
from raysim.storage.lease import Lease, refuse_if_held
from raysim.storage.server_state import write_state

if TYPE_CHECKING:  # which imports Ray, and the command line sets Ray's environment before that
    from raysim.engine.simulation import Result


def results_folder() -> Path:
    """The folder that relative --out paths are relative to."""
    # A job submitted with --working-dir runs in an uploaded copy that goes with the cluster: results go home instead.
    return Path.home() if "working_dir_files" in Path.cwd().parts else Path.cwd()


def run_directory(config: RunConfig) -> Path:
    """The path of this run's directory; an InputError if it is taken or cannot be written. Creates nothing."""
    name = f"{config.method}-{Path(config.dataset).name}-{time.strftime('%Y%m%d-%H%M%S')}".replace(":", "-")
    path = results_folder() / (config.out or Path("runs") / name)
    if path.is_dir():
        refuse_if_held(path)
    check_directory(config, path)
    parent = next(p for p in [path, *path.parents] if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(f"--out {path} cannot be written: no permission in {parent}; choose another")
    return path


def check_directory(config: RunConfig, path: Path) -> None:
    """Raise an InputError if this run must not be written there, for what is there already."""
    if path.exists() and not path.is_dir():
        raise InputError(f"--out {path} is a file; give a directory")
    if not path.exists() or run_files.is_empty(path):
        return
    if config.resume and (path / "config.json").exists():
        _check_same_run(config, path)
    elif not (config.resume and run_files.is_begun(path)):
        if not config.overwrite:
            raise InputError(f"--out {path} exists; choose another, add --resume to go on or --overwrite to replace it")
        run_files.own_files(path)


def with_fuse_of(path: Path, config: RunConfig) -> RunConfig:
    """The configuration; where it goes on with the run at this path, --fuse auto is what that run began with."""
    if config.fuse != "auto" or not (config.resume and (path / "config.json").exists()):
        return config
    return replace(config, fuse=_recorded(path, config)["fuse"])


def _recorded(path: Path, config: RunConfig) -> dict[str, Any]:
    """The settings that the run at this path began with."""
    return from_record(read_config(path)["settings"], str(path / "config.json"), config.method)


def _check_same_run(config: RunConfig, path: Path) -> None:
    """Refuse to go on with other settings than the run began with, as far as they decide its result."""
    before = _recorded(path, config)
    config = with_fuse_of(path, config)
    for key, value in config.identity().items():
        if before.get(key) != value:
            raise InputError(f"--resume: {path} has {flag(key)} {before.get(key)}, not {value}; leave it as it was")
    if (done := rounds_done(path)) > config.rounds:
        raise InputError(
            f"--resume: {path} has {done} rounds, more than --rounds {config.rounds}; give at least {done}"
        )
    history = read_history(path / "metrics.jsonl") if done == config.rounds and not read_summary(path) else []
    if history and not history[-1].is_complete:
        more = f"give at least --rounds {done + 1}"
        raise InputError(f"--resume: {path} has {done} rounds, and went on as if the last were not its last; {more}")


def rounds_done(path: Path) -> int:
    """The number of rounds in a run directory's metrics.jsonl."""
    metrics = path / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.is_file() else 0


def finished_run(config: RunConfig, path: Path) -> dict[str, Any]:
    """The summary of the run in this directory; empty if this configuration has something left to do there.

    A finished run goes on if it is given more rounds, or if what ended it early no longer does.
    """
    summary = read_summary(path) if config.resume else {}
    if not summary or summary["rounds"] == config.rounds:
        return summary
    before = read_config(path)["settings"]
    if all(before.get(key) == value for key, value in length_settings(config).items()):
        return summary
    return summary if reason_to_stop(config, read_history(path / "metrics.jsonl")) else {}


def check_sources(config: RunConfig, path: Path, sources: dict[str, str], data: str) -> None:
    """Refuse to go on with other data than the run began with, or another model, partition or weights of one's own.

    `data` is the hash of the data as it is now.
    """
    if not (config.resume and (path / "config.json").exists()):
        return
    recorded = read_config(path)
    if recorded.get("data") != data:
        raise InputError(
            f"--resume: {path} began with other data: images or labels of --dataset {config.dataset} have changed "
            "since; put back what was there, or start another run"
        )
    before = recorded.get("sources", {})
    for key in ("model", "dataset", "partition", "start_from"):
        if before.get(key) != sources.get(key):
            what = "what is in it" if key in ("dataset", "start_from") else "its source"
            raise InputError(f"--resume: {path} began with another {flag(key)} {getattr(config, key)}: {what} differs")


def start_of(config: RunConfig, path: Path) -> str | None:
    """Return the digest of the weights that a run to be resumed began with, if it has checkpoints to go on from."""
    if not (config.resume and (path / "config.json").exists() and any((path / "checkpoints").glob("round-*.json"))):
        return None
    return read_config(path).get("sources", {}).get("start_from")


class RunDirectory:
    """Writes the files of one run. Without `resume`, files of an earlier run are removed first.

    `lease` is the one under which that happens. Without it nobody else may know of the directory, as in tests.
    `mirrored` is called whenever what is written makes a whole that should reach the store of which this is a copy.
    """

    def __init__(
        self, path: Path, resume: bool = False, lease: Lease | None = None,
        mirrored: Callable[[], None] = lambda: None,
    ):  # fmt: skip
        self.path, self.lease, self.mirrored = path, lease, mirrored
        self.token = secrets.token_hex(8)  # by which the run knows its checkpoints from others'
        self.rounds = 0  # in metrics.jsonl
        self.digests = [hashlib.sha256()]  # of its first 0, 1, 2 … lines
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not resume and not run_files.is_empty(path):
                run_files.remove(run_files.own_files(path))
            elif resume and (path / "config.json").exists():
                self.token = read_json(path / "config.json", {"run": str})["run"]
        except OSError as error:
            raise InputError(f"--out {path} cannot be written: {error.strerror}; choose another") from None
        for lines in (path / "events.jsonl", path / "timeline.jsonl"):
            if resume and lines.exists():  # a kill may have cut its last line
                content = _content(lines)
                write_atomically(lines, content[: content.rfind(b"\n") + 1])

    def check_lease(self) -> None:
        """Raise a RaysimError if another driver has taken the directory over."""
        if self.lease:
            self.lease.check()

    def extend(self, config: RunConfig) -> None:
        """If a finished run is to go on here, record that, and take away the summary by which it is finished."""
        if summary := read_summary(self.path):
            self.write_event("extended", {"round": summary["rounds"], "text": f"goes on to --rounds {config.rounds}"})
            (self.path / "summary.json").unlink()
            sync(self.path)

    def write_config(self, config: RunConfig, **facts: object) -> None:
        """Write config.json: the settings, what the run was started from, and further facts about it."""
        start = {"format": CONFIG_FORMAT, "run": self.token, "settings": config.settings(), "versions": versions()}
        write_atomically(self.path / "config.json", to_json(start | {"git": git_commit()} | facts))
        self.mirrored()

    def write_metrics(self, metrics: RoundMetrics) -> None:
        """Append the round's line to metrics.jsonl; where the round is repeated, in place of its earlier line."""
        self.check_lease()
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
        lines = _content(path).splitlines(keepends=True)[:rounds] if path.exists() else []
        if len(lines) < rounds:
            raise RaysimError(f"{path} has lost rounds ({len(lines)} of {rounds} are left): start the run again")
        self.rounds, self.digests = 0, self.digests[:1]
        for line in lines:
            self._count(line)
        if digest and self.digests[rounds].hexdigest() != digest:
            raise RaysimError(f"{path} is damaged: its first {rounds} lines are not those written; start the run again")
        history = [read_metrics(path, line, i) for i, line in enumerate(lines, 1)]
        write_atomically(path, b"".join(lines))
        return history

    def synced_metrics(self, rounds: int) -> str:
        """The digest of these rounds' lines, once they are on the disk: a checkpoint is of no use without them."""
        self.check_lease()
        sync(self.path / "metrics.jsonl")
        return self.digests[rounds].hexdigest()

    def write_timeline(self, line: dict[str, Any]) -> None:
        """Append when which actor worked in a round. Of a round that is repeated, readers take the last line."""
        append_line(self.path / "timeline.jsonl", line)

    def write_event(self, kind: str, details: dict[str, Any]) -> None:
        """Append an event with the time of now."""
        append_line(self.path / "events.jsonl", {"time": round(time.time(), 3), "event": kind} | details)

    def write_figures(self, name: str, figures: list[Figure]) -> None:
        """Write privacy.json or measures.json."""
        write_atomically(self.path / name, to_json([asdict(figure) for figure in figures]))

    def write_models(self, models: list[dict[str, np.ndarray]], state: dict[str, dict[str, Any]]) -> None:
        """Write the final models, and the parts' server state."""
        self.check_lease()
        write_state(self.path, state)
        tensors = models[0] if len(models) == 1 else {f"{i}.{k}": v for i, m in enumerate(models) for k, v in m.items()}
        write_atomically(self.path / "model.safetensors", save(tensors))

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write the summary, which comes last: its presence means that the run is whole."""
        self.check_lease()
        sync(self.path)
        write_atomically(self.path / "summary.json", to_json(summary))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DamagedFile(path, f"it cannot be read ({error.strerror})") from None


class Recorder(Callback):
    """Records a run in its directory: metrics, timeline, events, figures and summary."""

    def __init__(self, directory: RunDirectory):
        self.directory = directory

    def on_round(self, metrics: RoundMetrics) -> None:
        self.directory.write_metrics(metrics)
        self.directory.write_timeline(metrics.timeline)

    def on_event(self, kind: str, details: dict[str, Any]) -> None:
        self.directory.write_event(kind, details)

    def on_result(self, result: Result) -> dict[str, Any] | None:
        found = {"privacy": result.privacy, "measures": result.measures}
        for name, figures in found.items():
            if figures:
                self.directory.write_figures(f"{name}.json", figures)
        return {name: {figure.name: figure.value for figure in figures} for name, figures in found.items() if figures}

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
