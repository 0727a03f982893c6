"""Runs of a grid on one cluster at once: each is a process of its own, with a share of the nodes that is its alone.

A run sees no more of the cluster than its share (`cluster.nodes`) and plans in it as it would alone; its result does
not depend on the share. All that remains of a run is its run directory, so the same grid goes on where it stopped.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import psutil

from raysim.config import RunConfig
from raysim.data import partitions
from raysim.engine.ray_runner import cluster
from raysim.engine.ray_runner.plan import Node, make_plan, of_type
from raysim.errors import InputError, PlanError, RaysimError
from raysim.experiments import objects
from raysim.experiments.grid import Grid, PlannedRun
from raysim.experiments.table import write_table
from raysim.methods.base import Part
from raysim.observe.progress import Reporter, duration
from raysim.observe.report import write_comparison
from raysim.observe.search_trial import PIPES
from raysim.settings import as_dict, flag
from raysim.single_run import idle_parts, largest_client, prepare
from raysim.storage.formats import read_summary
from raysim.storage.run_directory import rounds_done, run_directory

Judge = Callable[[PlannedRun, int, float], str]  # why a run with this accuracy after a round ends there, if it does

REPORT_SECONDS = 60.0  # between lines of progress, where there is no bar
END_SECONDS = 12.0  # that runs have to end after SIGTERM; less than we have ourselves (engine/signals.py)

# The settings that decide whether the data can be loaded and dealt.
DATA_SETTINGS = (
    "dataset", "image_column", "label_column", "data", "download", "image_size", "train_size", "fraction", "test_size",
    "partition", "clients",
    *partitions.own_settings(), "model", "fuse",
)  # fmt: skip


def run_grid(grid: Grid, reporter: Reporter, judge: Judge | None = None) -> None:
    """Run all of a grid, and write their table and one report about them; a RaysimError if a run failed.

    Runs report every accuracy to the `judge`, if there is one, and end early where it gives a reason.
    """
    scheduler = RunScheduler(grid, reporter, lambda: write_table(grid, scheduler.failed), judge)
    try:
        failed = scheduler.run()
    except KeyboardInterrupt:
        raise KeyboardInterrupt("raysim: interrupted; the same command again goes on") from None
    text = write_table(grid, failed)
    reporter.say(f"{text}\ntable: {grid.folder / 'table.md'}")
    if done := [run.folder for run in grid.runs if run.finished]:
        reporter.say(f"report: {write_comparison(done, grid.folder / 'report.html')}")
    if failed:
        raise RaysimError(f"{len(failed)} of {len(grid.runs)} runs failed; the same command again tries only them")


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Reserve the folder for this process and the runs it starts: no two commands write into one run directory."""
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
        yield lock  # runs inherit it, so it is held for as long as one of them lives
    finally:
        os.close(lock)


def units(nodes: list[Node], threads: int) -> list[Node]:
    """The smallest shares of these nodes: a GPU each, or if no node has any, the CPUs of one actor."""
    with_gpus = [n for n in nodes if n.gpus]
    found = []
    for node in with_gpus or [n for n in nodes if n.cpus] or nodes:
        count = node.gpus or max(1, int(node.cpus / threads))
        share = dataclasses.replace(node, cpus=node.cpus / count, gpus=node.gpus // count, memory=node.memory // count)
        found += [share] * count
    return found


def merged(share: list[Node]) -> list[Node]:
    """The units added up by node."""
    together: dict[str, Node] = {}
    for unit in share:
        before = together.get(unit.id, Node(unit.id, 0.0, 0, 0))
        sums = {name: getattr(before, name) + getattr(unit, name) for name in ("cpus", "gpus", "memory")}
        together[unit.id] = dataclasses.replace(unit, **sums)
    return list(together.values())


def flags(config: RunConfig) -> list[str]:
    """The flags of `raysim run` that give this configuration."""
    words = []
    owners: list[tuple[RunConfig | Part, str]] = [*((part, f"{part.name}.") for part in config.parts), (config, "")]
    for owner, prefix in owners:
        defaults = {field.name: field.default for field in dataclasses.fields(owner)}
        for name, value in as_dict(owner).items():
            if value != defaults[name]:
                text = str(value).lower() if isinstance(value, bool) or value is None else str(value)
                words.append(f"{flag(prefix + name)}={text}")
    return words


class RunScheduler:
    """Runs what is not finished of a grid, as many runs at once as fit; `on_finish` is called after each run."""

    def __init__(
        self, grid: Grid, reporter: Reporter, on_finish: Callable[[], object] = lambda: None,
        judge: Judge | None = None,
    ):  # fmt: skip
        self.grid, self.reporter, self.on_finish, self.judge = grid, reporter, on_finish, judge
        for run in grid.runs:
            run_directory(run.config)  # raises if it cannot be written, or holds another run
        self.waiting = [run for run in grid.runs if not run.finished]
        self.running: dict[PlannedRun, tuple[subprocess.Popen[bytes], list[Node]]] = {}
        self.failed: dict[PlannedRun, str] = {}
        self.news: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()  # what threads hear, to be dealt with

    def run(self) -> dict[PlannedRun, str]:
        """Run all of them, and return the reason for each that failed."""
        if not self.waiting:
            return {}
        client_bytes = self._check_data()
        self.in_process = all(run.config.in_process for run in self.waiting)
        with locked(self.grid.folder) as lock, nullcontext() if self.in_process else cluster.connected():
            self.lock = lock
            self.free = self._find_units()
            self.at_once = self._how_many(client_bytes)
            self.began, self.rounds_before = time.monotonic(), self._rounds()
            done = len(self.grid.runs) - len(self.waiting)
            self.reporter.say(
                f"{len(self.grid.runs)} runs{f', {done} of them done' if done else ''}, {self.at_once} at once on "
                f"{len(self.free)} {'GPUs' if self.free[0].gpus else 'CPU places'}; in {self.grid.folder}"
            )
            self.reporter.start(sum(run.config.rounds for run in self.grid.runs))
            try:
                self._work()
            finally:
                self._stop()
                self.reporter.stop()
        return self.failed

    # -- before the first run ----------------------------------------------------------------------------------------

    def _check_data(self) -> int:
        """Load and deal each kind of data once, so that errors in it show now; returns the largest client's bytes."""
        kinds: dict[tuple[Any, ...], list[PlannedRun]] = {}
        for run in self.waiting:
            kinds.setdefault(tuple(getattr(run.config, key) for key in DATA_SETTINGS), []).append(run)
        largest, warnings = 0, dict[str, None]()
        for runs in kinds.values():
            dataset, dealt = prepare(runs[0].config)
            largest = max(largest, *(largest_client(run.config, dataset, dealt) for run in runs))
            warnings |= dict.fromkeys(f"{run.row}: {text}" for run in runs for text in idle_parts(run.config, dealt))
        for text in warnings:
            self.reporter.say(f"warning: {text}")
        return largest

    def _find_units(self) -> list[Node]:
        threads = max(run.config.threads for run in self.waiting)
        if not self.in_process:
            nodes, types = cluster.nodes(), {run.config.gpu_type for run in self.waiting}
            return units(of_type(nodes, types.pop() if len(types) == 1 else None) or nodes, threads)
        cpus = len(os.sched_getaffinity(0))
        return units([Node("", float(cpus), 0, psutil.virtual_memory().total)], threads)

    def _how_many(self, client_bytes: int) -> int:
        """The number of runs at once: --at-once, or as many as there are units, if their plans fit into the shares."""
        if self.grid.at_once:
            if self.grid.at_once > len(self.free):
                raise PlanError(f"--at-once {self.grid.at_once}: there is room for {len(self.free)} runs at once")
            return self.grid.at_once
        most = min(len(self.free), len(self.waiting))
        if self.in_process:
            return most
        for many in range(most, 1, -1):
            with suppress(PlanError):
                self._check_plans(many, client_bytes)
                return many
        self._check_plans(1, client_bytes)
        return 1

    def _check_plans(self, many: int, client_bytes: int) -> None:
        """Raise a PlanError if a run does not fit into its share where so many run at once."""
        share = merged(self.free[: len(self.free) // many])
        for run in self.waiting:
            make_plan(run.config, share, client_bytes)

    # -- while they run ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        self.reported = time.monotonic()  # when something was said last
        while self.waiting or self.running:
            while self.waiting and self.free and len(self.running) < self.at_once:
                self._start(self.waiting.pop(0))
            with suppress(queue.Empty):
                self.news.get(timeout=1.0 if self.reporter.bar else REPORT_SECONDS)()
            if time.monotonic() - self.reported >= REPORT_SECONDS:
                self.reported = time.monotonic()
                self.reporter.say(self._progress())
            self.reporter.reached(self._rounds())

    def _start(self, run: PlannedRun) -> None:
        """Start a run with its fair share of the free units: the rest is for the runs that can start beside it."""
        beside = min(len(self.waiting) + 1, self.at_once - len(self.running))
        # From the node with most free units, so that a run is on as few nodes as possible.
        self.free.sort(key=lambda unit: (-sum(u.id == unit.id for u in self.free), unit.id))
        count = max(1, len(self.free) // beside)
        share, self.free = self.free[:count], self.free[count:]
        environment = os.environ | cluster.worker_environment()
        if not self.in_process:
            nodes = [dataclasses.asdict(node) for node in merged(share)]
            environment |= {
                "RAY_ADDRESS": cluster.address_of_head(), cluster.SHARE: json.dumps(nodes),
            }  # fmt: skip
        run.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "raysim", "run", *flags(run.config)]
        handed_over, heard = objects.handed_over(run.config), self._heard(run)
        with open(run.folder / "log.txt", "wb") as log, handed_over as own, heard as pipes:
            if pipes:
                environment |= {PIPES: ",".join(map(str, pipes))}
            # In a session of its own: Ctrl-C reaches only this process, which ends the runs in order.
            process = subprocess.Popen(
                command, env=environment | own, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, pass_fds=[self.lock, *pipes, *map(int, own.values())],
            )  # fmt: skip
        self.running[run] = process, share
        threading.Thread(target=self._wait_for, args=(run, process), daemon=True).start()

    def _wait_for(self, run: PlannedRun, process: "subprocess.Popen[bytes]") -> None:
        process.wait()
        self.news.put(partial(self._finish, run))

    @contextmanager
    def _heard(self, run: PlannedRun) -> Iterator[tuple[int, ...]]:
        """The descriptors by which a run asks the judge and is answered, if there is one; ours again afterwards."""
        if not self.judge:
            yield ()
            return
        (questions, asking), (answers, answering) = os.pipe(), os.pipe()
        threading.Thread(target=self._listen, args=(run, questions, answering), daemon=True).start()
        try:
            yield asking, answers
        finally:
            os.close(asking)
            os.close(answers)

    def _listen(self, run: PlannedRun, questions: int, answering: int) -> None:
        """Pass on what a run asks, until it has closed its end."""
        with os.fdopen(questions) as lines, os.fdopen(answering, "w") as answers:
            for line in lines:
                answered = threading.Event()
                self.news.put(partial(self._answer, run, json.loads(line), answers, answered))
                answered.wait()

    def _answer(self, run: PlannedRun, asked: dict[str, Any], answers: TextIO, answered: threading.Event) -> None:
        assert self.judge
        with suppress(OSError):  # it is gone, and has nothing to hear any more
            answers.write(json.dumps({"stop": self.judge(run, asked["round"], asked["accuracy"])}) + "\n")
            answers.flush()
        answered.set()

    def _finish(self, run: PlannedRun) -> None:
        """Take note of a run's end."""
        process, share = self.running.pop(run)
        self.free += share
        done = len(self.grid.runs) - len(self.waiting) - len(self.running)
        if process.returncode == 0 and run.finished:
            summary = read_summary(run.folder)
            outcome = f"{100 * summary['final_accuracy']:.2f} % in {duration(summary['seconds'])}"
            outcome += f" ({summary['stopped']})" if summary.get("stopped") else ""
        else:
            self.failed[run] = reason(run, process.returncode)
            outcome = f"FAILED: {self.failed[run]}"
        self.reported = time.monotonic()
        self.reporter.say(f"[{done}/{len(self.grid.runs)}] {run.title}: {outcome}; {self._left()}")
        self.on_finish()

    def _rounds(self) -> int:
        """The rounds that all runs together have done."""
        return sum(run.config.rounds if run.finished else rounds_done(run.folder) for run in self.grid.runs)

    def _left(self) -> str:
        """How many runs are left, and about how long they take."""
        if not (self.waiting or self.running):
            return "none left"
        left = sum(run.config.rounds - rounds_done(run.folder) for run in [*self.waiting, *self.running])
        done = self._rounds() - self.rounds_before
        about = f", about {duration((time.monotonic() - self.began) / done * left)}" if done > 0 else ""
        return f"{len(self.waiting) + len(self.running)} left{about}"

    def _progress(self) -> str:
        total = sum(run.config.rounds for run in self.grid.runs)
        return f"{self._rounds()} of {total} rounds; runs: {len(self.running)} at work, {self._left()}"

    def _stop(self) -> None:
        """End what is still running: by SIGTERM, which a run takes as Ctrl-C, and then by force."""
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


def reason(run: PlannedRun, code: int) -> str:
    """Why a run failed: the last message in its log, and where the log is."""
    path = run.folder / "log.txt"
    lines = path.read_text(errors="replace").strip().splitlines()
    messages = [line.removeprefix("raysim: ") for line in lines if line.startswith("raysim: ")] or lines[-1:] or [""]
    how = f"ended by signal {-code}: " if code < 0 else ""
    return f"{how}{messages[-1]} ({path})"
