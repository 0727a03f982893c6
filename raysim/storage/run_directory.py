"""The run directory: what a run leaves behind, written so that a kill at any moment leaves it readable."""

import errno
import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import numpy as np
from safetensors.numpy import save

from raysim import __version__
from raysim.config import RunConfig
from raysim.errors import InputError, RaysimError
from raysim.privacy.figures import Figure
from raysim.settings import flag

FILES = (
    "config.json", "metrics.jsonl", "events.jsonl", "summary.json", "timeline.jsonl", "model.safetensors",
    "labels.png", "labels.csv", "synthetic.parquet", "synthetic.png", "pairs.png", "features.png", "features.json",
    "privacy.json", "report.html", "log.txt",
)  # fmt: skip


def digest(trees: list[dict]) -> str:
    """SHA-256 over floating arrays (nested dicts too) sorted by name: name, dtype, shape, little-endian bytes."""
    sha = hashlib.sha256()
    for tree in trees:
        for name, value in sorted(_leaves(tree).items()):
            array = np.asarray(value)
            if np.issubdtype(array.dtype, np.floating):
                array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
                sha.update(f"{name}|{array.dtype.name}|{array.shape}|".encode())
                sha.update(array.tobytes())
    return sha.hexdigest()


def _leaves(tree: dict, prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in tree.items():
        found |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def results_folder() -> Path:
    """What relative --out paths are relative to."""
    # A job submitted with --working-dir runs in an uploaded copy that goes with the cluster: results go home instead.
    return Path.home() if "working_dir_files" in Path.cwd().parts else Path.cwd()


def run_directory(config: RunConfig) -> Path:
    """Where this run goes; an InputError if that is taken or cannot be written. Creates nothing."""
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
    """Whether a run may have been killed here before its config.json: there is nothing but what one writes."""
    return all(entry.name.removeprefix(".").removesuffix(".tmp") in FILES for entry in path.iterdir())


def _check_same_run(config: RunConfig, path: Path) -> None:
    """A run goes on only with the settings it began with, as far as they decide its result."""
    before = json.loads((path / "config.json").read_text())["settings"]
    for key, value in config.identity().items():
        if before.get(key) != value:
            raise InputError(f"--resume: {path} has {flag(key)} {before.get(key)}, not {value}; leave it as it was")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """While `path` is written: what the disk refuses ends the run with one line that says what to do about it."""
    try:
        yield
    except OSError as error:
        remedy = "free space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "put that right"
        # What a run writes is in its directory or in one below. After the summary only the report is missing.
        run = next((folder for folder in path.parents[:2] if os.path.isfile(folder / "config.json")), None)
        again = "start the run again"
        if run:
            command = "report" if os.path.isfile(run / "summary.json") else "resume"
            again = f"`python -m raysim {command} {shlex.quote(str(run))}`"
        reason = error.strerror or error
        raise RaysimError(f"{path} cannot be written: {reason}; {remedy}, then {again}") from error


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file under a temporary name, that is synced and renamed: readers see the old file or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        try:
            with open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)  # on a full disk it takes what others need
            raise


def write_atomically(path: Path, content: bytes) -> None:
    """In place of what is there, or not at all."""
    with replacing(path) as file:
        file.write(content)


def sync(path: Path) -> None:
    """Until a file's content is on the disk, or a folder's names: a renamed file has its new name only then."""
    with writing(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some network file systems cannot sync a folder
                raise
        finally:
            os.close(descriptor)


def _json(content: dict | list) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"


class Record:
    """Writes one run's directory."""

    def __init__(self, path: Path, resume: bool = False):
        self.path = path
        self.told = 0  # the last round in metrics.jsonl
        self.digests = [hashlib.sha256()]  # of its first 0, 1, 2 … lines
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not resume:  # what is there is being overwritten
                for name in FILES:
                    (path / name).unlink(missing_ok=True)
                for name in ("checkpoints", "profile", "tensorboard"):
                    shutil.rmtree(path / name, ignore_errors=True)
        except OSError as error:
            raise InputError(f"--out {path} cannot be written: {error.strerror}; choose another") from None
        for told in (path / "events.jsonl", path / "timeline.jsonl"):
            if resume and told.exists():  # a kill may have cut its last line
                content = told.read_bytes()
                write_atomically(told, content[: content.rfind(b"\n") + 1])

    def config(self, config: RunConfig, **facts) -> None:
        content = {"settings": config.settings(), "versions": versions(), "git": git_commit()} | facts
        write_atomically(self.path / "config.json", _json(content))

    def metrics(self, line: dict) -> None:
        """The round's line, in place of any from it on: a round that is done again is not told twice."""
        if line["round"] <= self.told:
            self.keep(line["round"] - 1)
        self._tell(self._append("metrics.jsonl", line))

    def _tell(self, line: bytes) -> None:
        self.digests.append(self.digests[-1].copy())
        self.digests[-1].update(line)
        self.told += 1

    def keep(self, rounds: int, digest: str = "") -> list[dict]:
        """Cut the metrics back to these rounds, and give them; they must have the digest, if there is one."""
        path = self.path / "metrics.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)[:rounds] if path.exists() else []
        if len(lines) < rounds:
            raise RaysimError(f"{path} has lost rounds ({len(lines)} of {rounds} are left): start the run again")
        self.told, self.digests = 0, self.digests[:1]
        for line in lines:
            self._tell(line)
        if digest and self.digests[rounds].hexdigest() != digest:
            raise RaysimError(f"{path} is damaged: its first {rounds} lines are not those written; start the run again")
        write_atomically(path, b"".join(lines))
        return [json.loads(line) for line in lines]

    def timeline(self, line: dict) -> None:
        """When which actor worked in a round. Of a round that is done again the last line counts."""
        self._append("timeline.jsonl", line)

    def event(self, kind: str, **details) -> None:
        self._append("events.jsonl", {"time": round(time.time(), 3), "event": kind} | details)

    def finish(self, models: list[dict[str, np.ndarray]], summary: dict) -> None:
        """The final model(s) and the summary, which comes last: its presence means the run is whole."""
        tensors = models[0] if len(models) == 1 else {f"{i}.{k}": v for i, m in enumerate(models) for k, v in m.items()}
        write_atomically(self.path / "model.safetensors", save(tensors))
        sync(self.path)
        write_atomically(self.path / "summary.json", _json(summary))

    def privacy(self, figures: list[Figure]) -> None:
        write_atomically(self.path / "privacy.json", _json([asdict(figure) for figure in figures]))

    def synced_metrics(self, rounds: int) -> str:
        """The digest of these rounds' lines, now on the disk: a checkpoint is of no use without them."""
        sync(self.path / "metrics.jsonl")
        return self.digests[rounds].hexdigest()

    def _append(self, name: str, line: dict) -> bytes:
        path = self.path / name
        content = left = json.dumps(line).encode() + b"\n"
        with writing(path), open(path, "ab", buffering=0) as file:
            whole = file.tell()
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(whole)  # readers find whole lines
                raise
        return content


def versions() -> dict[str, str]:
    names = ("ray", "torch", "torchvision", "numpy")
    return {"raysim": __version__, "python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in names
    }


def git_commit() -> str | None:
    """Of the source this runs from, if it is a checkout; `-dirty` marks uncommitted changes."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
