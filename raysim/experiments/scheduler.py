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
from typing import Any, Protocol, TextIO

import psutil

from raysim.config import RunConfig
from raysim.data import partitions
from raysim.engine.ray_runner import cluster
from raysim.engine.ray_runner.plan import Node, make_plan, of_type
from raysim.engine.signals import PARENT
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

REPORT_SECONDS = 60.0  # between lines of progress, where there is no bar
END_SECONDS = 12.0  # that runs have to end after SIGTERM; less than we have ourselves (engine/signals.py)
LOCK_SECONDS = 5.0  # in which the runs of a command that was killed are gone: they end with it

# The settings that decide whether the data can be loaded and dealt.
DATA_SETTINGS = (
    "dataset", "image_column", "label_column", "data", "download", "image_size", "train_size", "fraction", "test_size",
    "partition", "clients",
    *partitions.own_settings(), "model", "fuse",
)  # fmt: skip


class Trials(Protocol):
    """Runs of which each is drawn when it can start, and may be ended early: `raysim search`."""

    number: int  # of all of them, drawn or not
    examples: tuple[PlannedRun, ...]  # never run: settings to check data and plans with before the first draw

    def open(self) -> list[PlannedRun]:
        """Return the trials that an earlier command drew in this folder, which is locked."""

    def draw(self) -> PlannedRun | None:
        """Draw the next trial; None if there is no further one."""

    def judge(self, run: PlannedRun, t: int, accuracy: float) -> str:
        """Say why a trial with this accuracy after round t ends there; empty if it goes on."""

    def finished(self, run: PlannedRun) -> None:
        """Take note of a trial's result."""


def run_grid(grid: Grid, reporter: Reporter, trials: Trials | None = None) -> Grid:
    """Run all of a grid, and write their table and one report about them; a RaysimError if a run failed.

    With `trials` the grid is empty at first; the one that is returned has those that were drawn.
    """
    scheduler = RunScheduler(grid, reporter, lambda: write_table(scheduler.grid, scheduler.failed), trials)
    try:
        failed = scheduler.run()
    except KeyboardInterrupt:
        raise KeyboardInterrupt("raysim: interrupted; the same command again goes on") from None
    grid = scheduler.grid
    text = write_table(grid, failed)
    reporter.say(f"{text}\ntable: {grid.folder / 'table.md'}")
    if done := [run.folder for run in grid.runs if run.finished]:
        reporter.say(f"report: {write_comparison(done, grid.folder / 'report.html')}")
    if failed:
        raise RaysimError(f"{len(failed)} of {len(grid.runs)} runs failed; the same command again tries only them")
    return grid


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Reserve the folder for this process and the runs it starts: no two commands write into one run directory."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR, 0o666)
    except OSError as error:
        raise InputError(f"--out {folder} cannot be written: {error.strerror}; choose another") from None
    try:
        until = time.monotonic() + LOCK_SECONDS
        while not _taken(lock):
            if time.monotonic() > until:
                raise InputError(f"--out {folder} is in use by another command, or by a run it left; wait for it")
            time.sleep(0.1)
        yield lock  # runs inherit it, so it is held for as long as one of them lives
    finally:
        os.close(lock)


def _taken(lock: int) -> bool:
    """Whether the lock is ours now."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
        trials: Trials | None = None,
    ):  # fmt: skip
        self.grid, self.reporter, self.on_finish, self.trials = grid, reporter, on_finish, trials
        for run in grid.runs:
            run_directory(run.config)  # raises if it cannot be written, or holds another run
        self.waiting = [run for run in grid.runs if not run.finished]
        self.examples = trials.examples if trials else tuple(self.waiting)
        self.running: dict[PlannedRun, tuple[subprocess.Popen[bytes], list[Node]]] = {}
        self.failed: dict[PlannedRun, str] = {}
        self.news: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()  # what threads hear, to be dealt with

    def run(self) -> dict[PlannedRun, str]:
        """Run all of them, and return the reason for each that failed."""
        if not self.examples:
            return {}
        client_bytes = self._check_data()
        self.in_process = all(run.config.in_process for run in self.examples)
        with locked(self.grid.folder) as self.lock:
            for run in self.trials.open() if self.trials else []:
                self._add(run)
            if self.to_come:
                with nullcontext() if self.in_process else cluster.connected():
                    self._run(client_bytes)
        return self.failed

    def _run(self, client_bytes: int) -> None:
        self.free = self._find_units()
        self.at_once = self._how_many(client_bytes)
        self.began, self.rounds_before = time.monotonic(), self._rounds()
        done = self.number - self.to_come
        self.reporter.say(
            f"{self.number} runs{f', {done} of them done' if done else ''}, {self.at_once} at once on "
            f"{len(self.free)} {'GPUs' if self.free[0].gpus else 'CPU places'}; in {self.grid.folder}"
        )
        self.reporter.start(self._all_rounds())
        try:
            self._work()
        finally:
            self._stop()
            self.reporter.stop()

    @property
    def number(self) -> int:
        """The number of all runs, of which some may have to be drawn."""
        return max(self.trials.number if self.trials else 0, len(self.grid.runs))

    @property
    def to_come(self) -> int:
        """The number of runs that have not been started."""
        return len(self.waiting) + self.number - len(self.grid.runs)

    def _add(self, run: PlannedRun) -> None:
        """Add a trial to the grid."""
        run_directory(run.config)
        self.grid = dataclasses.replace(self.grid, runs=(*self.grid.runs, run))
        if not run.finished:
            self.waiting.append(run)

    def _next(self) -> PlannedRun | None:
        """Take the next run that can start; None if there is none."""
        if not self.waiting and self.trials and self.to_come and (drawn := self.trials.draw()):
            self._add(drawn)
        return self.waiting.pop(0) if self.waiting else None

    # -- before the first run ----------------------------------------------------------------------------------------

    def _check_data(self) -> int:
        """Load and deal each kind of data once, so that errors in it show now; returns the largest client's bytes."""
        kinds: dict[tuple[Any, ...], list[PlannedRun]] = {}
        for run in self.examples:
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
        threads = max(run.config.threads for run in self.examples)
        if not self.in_process:
            nodes, types = cluster.nodes(), {run.config.gpu_type for run in self.examples}
            return units(of_type(nodes, types.pop() if len(types) == 1 else None) or nodes, threads)
        cpus = len(os.sched_getaffinity(0))
        return units([Node("", float(cpus), 0, psutil.virtual_memory().total)], threads)

    def _how_many(self, client_bytes: int) -> int:
        """The number of runs at once: --at-once, or as many as there are units, if their plans fit into the shares."""
        if self.grid.at_once:
            if self.grid.at_once > len(self.free):
                raise PlanError(f"--at-once {self.grid.at_once}: there is room for {len(self.free)} runs at once")
            return self.grid.at_once
        most = min(len(self.free), self.to_come)
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
        for run in self.examples:
            make_plan(run.config, share, client_bytes)

    # -- while they run ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        self.reported = time.monotonic()  # when something was said last
        while self.to_come or self.running:
            while self.free and len(self.running) < self.at_once and (run := self._next()):
                self._start(run)
            with suppress(queue.Empty):
                self.news.get(timeout=1.0 if self.reporter.bar else REPORT_SECONDS)()
            if time.monotonic() - self.reported >= REPORT_SECONDS:
                self.reported = time.monotonic()
                self.reporter.say(self._progress())
            self.reporter.reached(self._rounds())

    def _start(self, run: PlannedRun) -> None:
        """Start a run with its fair share of the free units: the rest is for the runs that can start beside it."""
        beside = min(self.to_come + 1, self.at_once - len(self.running))
        # From the node with most free units, so that a run is on as few nodes as possible.
        self.free.sort(key=lambda unit: (-sum(u.id == unit.id for u in self.free), unit.id))
        count = max(1, len(self.free) // beside)
        share, self.free = self.free[:count], self.free[count:]
        environment = os.environ | cluster.worker_environment() | {PARENT: str(os.getpid())}
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
        """The descriptors by which a trial asks whether to go on and is answered; closed here afterwards."""
        if not self.trials:
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
        assert self.trials
        with suppress(OSError):  # it is gone, and has nothing to hear any more
            answers.write(json.dumps({"stop": self.trials.judge(run, asked["round"], asked["accuracy"])}) + "\n")
            answers.flush()
        answered.set()

    def _finish(self, run: PlannedRun) -> None:
        """Take note of a run's end."""
        process, share = self.running.pop(run)
        self.free += share
        done = self.number - self.to_come - len(self.running)
        if process.returncode == 0 and run.finished:
            if self.trials:
                self.trials.finished(run)
            summary = read_summary(run.folder)
            outcome = f"{100 * summary['final_accuracy']:.2f} % in {duration(summary['seconds'])}"
            outcome += f" ({summary['stopped']})" if summary.get("stopped") else ""
        else:
            self.failed[run] = reason(run, process.returncode)
            outcome = f"FAILED: {self.failed[run]}"
        self.reported = time.monotonic()
        self.reporter.say(f"[{done}/{self.number}] {run.title}: {outcome}; {self._left()}")
        self.on_finish()

    def _rounds(self) -> int:
        """The rounds that all runs together have done."""
        return sum(run.config.rounds if run.finished else rounds_done(run.folder) for run in self.grid.runs)

    def _undrawn_rounds(self) -> int:
        """The rounds of trials that are not drawn yet, which count as the first example."""
        return (self.number - len(self.grid.runs)) * self.examples[0].config.rounds

    def _all_rounds(self) -> int:
        return sum(run.config.rounds for run in self.grid.runs) + self._undrawn_rounds()

    def _left(self) -> str:
        """How many runs are left, and about how long they take."""
        if not (runs := self.to_come + len(self.running)):
            return "none left"
        known = sum(run.config.rounds - rounds_done(run.folder) for run in [*self.waiting, *self.running])
        done = self._rounds() - self.rounds_before
        each = (time.monotonic() - self.began) / done if done > 0 else 0.0
        return f"{runs} left" + (f", about {duration(each * (known + self._undrawn_rounds()))}" if done > 0 else "")

    def _progress(self) -> str:
        return f"{self._rounds()} of {self._all_rounds()} rounds; runs: {len(self.running)} at work, {self._left()}"

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
