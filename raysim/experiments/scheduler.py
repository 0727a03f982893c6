"""Many runs on one cluster at once: each a process of its own, with a share of the nodes that is its alone.

A run sees no more of the cluster than its share (`cluster.nodes`) and plans in it as it would alone; its result does
not depend on it. What it leaves behind is its run directory, so the same list again goes on where it stopped.
"""

import dataclasses
import fcntl
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil

from raysim.config import RunConfig
from raysim.data import partitions
from raysim.engine.ray_runner import cluster
from raysim.engine.ray_runner.plan import Node, make_plan
from raysim.errors import InputError, PlanError
from raysim.experiments.grid import Grid, Job, finished
from raysim.observe.progress import Reporter, duration
from raysim.settings import as_dict, flag
from raysim.single_run import largest_client, prepare
from raysim.storage.run_directory import run_directory

TELL_SECONDS = 60.0  # between lines that say how far it is, where there is no bar
END_SECONDS = 12.0  # that runs have to end when asked to; less than we have ourselves (ending.py)

# What of a configuration decides whether its data can be loaded and dealt.
DATA_SETTINGS = (
    "dataset", "data", "download", "image_size", "train_size", "fraction", "test_size", "partition", "clients",
    *partitions.own_settings(), "model", "fuse",
)  # fmt: skip


@contextmanager
def held(folder: Path):
    """The folder for this process and the runs it starts: no two commands write into one run directory."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR, 0o666)
    except OSError as error:
        raise InputError(f"--out {folder} cannot be written: {error.strerror}; choose another") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"--out {folder} is in use by another command, or by a run it left; wait for it") from None
        yield lock  # runs inherit it, so it is held for as long as one of them is there
    finally:
        os.close(lock)


def units(nodes: list[Node], threads: int) -> list[Node]:
    """The smallest shares of these nodes: a GPU, or on nodes without any the CPUs of one actor."""
    with_gpus = [n for n in nodes if n.gpus]
    found = []
    for node in with_gpus or [n for n in nodes if n.cpus] or nodes:
        count = node.gpus or max(1, int(node.cpus / threads))
        found += [Node(node.id, node.cpus / count, node.gpus // count, node.memory // count)] * count
    return found


def merged(share: list[Node]) -> list[Node]:
    """Several units as the nodes they make up."""
    together: dict[str, Node] = {}
    for unit in share:
        before = together.get(unit.id, Node(unit.id, 0.0, 0, 0))
        sums = (getattr(before, name) + getattr(unit, name) for name in ("cpus", "gpus", "memory"))
        together[unit.id] = Node(unit.id, *sums)
    return list(together.values())


def flags(config: RunConfig) -> list[str]:
    """The flags that give this configuration."""
    values = {f"{part.name}.{key}": (value, part) for part in config.parts for key, value in as_dict(part).items()}
    values |= {key: (value, config) for key, value in as_dict(config).items()}
    words = []
    for key, (value, owner) in values.items():
        default = next(f.default for f in dataclasses.fields(owner) if f.name == key.rpartition(".")[2])
        if value != default:
            words.append(f"{flag(key)}={str(value).lower() if isinstance(value, bool) or value is None else value}")
    return words


class Batch:
    """Runs the jobs that are not finished. `run` gives job -> error for those that failed."""

    def __init__(self, grid: Grid, reporter: Reporter, on_end=lambda: None):
        self.grid, self.reporter, self.on_end = grid, reporter, on_end
        for job in grid.jobs:
            run_directory(job.config)  # whether it can be written, and is the same run if it is there
        self.waiting = [job for job in grid.jobs if not finished(job)]
        self.running: dict[Job, tuple[subprocess.Popen, list[Node]]] = {}
        self.failed: dict[Job, str] = {}
        self.ended: queue.SimpleQueue[Job] = queue.SimpleQueue()

    def run(self) -> dict[Job, str]:
        if not self.waiting:
            return {}
        client_bytes = self._check_data()
        here = all(job.config.in_process for job in self.waiting)
        with held(self.grid.folder) as lock, nullcontext() if here else cluster.connected():
            self.lock, self.here = lock, here
            self.free = self._find_units()
            self.at_once = self._how_many(client_bytes)
            self.began, self.rounds_before = time.monotonic(), self._rounds()
            done = len(self.grid.jobs) - len(self.waiting)
            self.reporter.say(
                f"{len(self.grid.jobs)} runs{f', {done} of them done' if done else ''}, {self.at_once} at once on "
                f"{len(self.free)} {'GPUs' if self.free[0].gpus else 'CPU places'}; in {self.grid.folder}"
            )
            self.reporter.start(sum(job.config.rounds for job in self.grid.jobs))
            try:
                self._work()
            finally:
                self._stop()
                self.reporter.stop()
        return self.failed

    # -- inside ------------------------------------------------------------------------------------------------------

    def _check_data(self) -> int:
        """Load and deal each kind of data once: what is wrong is told before anything starts. The largest client."""
        kinds = {tuple(getattr(job.config, key) for key in DATA_SETTINGS): job.config for job in self.waiting}
        return max(largest_client(config, *prepare(config)) for config in kinds.values())

    def _find_units(self) -> list[Node]:
        threads = max(job.config.threads for job in self.waiting)
        if not self.here:
            return units(cluster.nodes(), threads)
        cpus = len(os.sched_getaffinity(0))
        return units([Node("", float(cpus), 0, psutil.virtual_memory().total)], threads)

    def _how_many(self, client_bytes: int) -> int:
        """As many at once as there are units for, and whose plans fit into their shares; or as was asked."""
        most = min(len(self.free), len(self.waiting))
        if self.grid.at_once:
            if self.grid.at_once > len(self.free):
                raise PlanError(f"--at-once {self.grid.at_once}: there is room for {len(self.free)} runs at once")
            return self.grid.at_once
        for many in range(most, 0, -1):
            share = merged(self.free[: len(self.free) // many])
            try:
                if not self.here:
                    for job in self.waiting:
                        make_plan(job.config, share, client_bytes)
                return many
            except PlanError:
                if many == 1:
                    raise
        raise AssertionError("no unit")

    def _work(self) -> None:
        told = time.monotonic()
        while self.waiting or self.running:
            while self.waiting and self.free and len(self.running) < self.at_once:
                self._start(self.waiting.pop(0))
            try:
                self._finish(self.ended.get(timeout=1.0 if self.reporter.bar else TELL_SECONDS))
                told = time.monotonic()
            except queue.Empty:
                if time.monotonic() - told >= TELL_SECONDS:
                    told = time.monotonic()
                    self.reporter.say(self._progress())
            self.reporter.reached(self._rounds())

    def _start(self, job: Job) -> None:
        """With its fair share of what is free: the rest is for those that can start beside it."""
        beside = min(len(self.waiting) + 1, self.at_once - len(self.running))
        # From the node with most room, so that a run is on as few as possible.
        self.free.sort(key=lambda unit: (-sum(u.id == unit.id for u in self.free), unit.id))
        count = max(1, len(self.free) // beside)
        share, self.free = self.free[:count], self.free[count:]
        environment = os.environ | cluster.worker_environment()
        if not self.here:
            nodes = [dataclasses.asdict(node) for node in merged(share)]
            environment |= {
                "RAY_ADDRESS": cluster.address_of_head(), cluster.SHARE: json.dumps(nodes),
            }  # fmt: skip
        job.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "raysim", "run", *flags(job.config)]
        with open(job.folder / "log.txt", "wb") as log:
            # In a session of its own: Ctrl-C is for us, who end the runs in order.
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                pass_fds=[self.lock],
            )  # fmt: skip
        self.running[job] = process, share
        threading.Thread(target=lambda: (process.wait(), self.ended.put(job)), daemon=True).start()

    def _finish(self, job: Job) -> None:
        process, share = self.running.pop(job)
        self.free += share
        done = len(self.grid.jobs) - len(self.waiting) - len(self.running)
        if process.returncode == 0 and finished(job):
            summary = json.loads((job.folder / "summary.json").read_text())
            said = f"{100 * summary['final_accuracy']:.2f} % in {duration(summary['seconds'])}"
        else:
            self.failed[job] = reason(job, process.returncode)
            said = f"FAILED: {self.failed[job]}"
        self.reporter.say(f"[{done}/{len(self.grid.jobs)}] {job.title}: {said}; {self._left()}")
        self.on_end()

    def _rounds(self) -> int:
        """That all runs together have done."""
        return sum(job.config.rounds if finished(job) else rounds_done(job) for job in self.grid.jobs)

    def _left(self) -> str:
        if not (self.waiting or self.running):
            return "none left"
        left = sum(job.config.rounds - rounds_done(job) for job in [*self.waiting, *self.running])
        done = self._rounds() - self.rounds_before
        about = f", about {duration((time.monotonic() - self.began) / done * left)}" if done > 0 else ""
        return f"{len(self.waiting) + len(self.running)} left{about}"

    def _progress(self) -> str:
        total = sum(job.config.rounds for job in self.grid.jobs)
        return f"{self._rounds()} of {total} rounds; runs: {len(self.running)} at work, {self._left()}"

    def _stop(self) -> None:
        """End what is still running: by SIGTERM, which a run takes as Ctrl-C, and then for good."""
        processes = [process for process, _ in self.running.values()]
        try:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + END_SECONDS
            for process in processes:
                process.wait(max(0.0, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            for process in processes:
                process.kill()


def rounds_done(job: Job) -> int:
    path = job.folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def reason(job: Job, code: int) -> str:
    """Why a run failed: what it said last, and where more is to be read."""
    path = job.folder / "log.txt"
    lines = path.read_text(errors="replace").strip().splitlines()
    said = [line.removeprefix("raysim: ") for line in lines if line.startswith("raysim: ")] or lines[-1:] or [""]
    how = f"ended by signal {-code}: " if code < 0 else ""
    return f"{how}{said[-1]} ({path})"
