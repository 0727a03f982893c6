"""Programs that take turns: each does one round on request and then waits, so that rounds can be interleaved.

A program under test (a side) is a process tree of its own, so its processor time and memory can be measured separately,
including its framework's daemons. It talks to the benchmark over its standard input and output, through `Turns`.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
MARK = "@turn "  # begins the lines meant for the benchmark; a side may print others
STOP_SECONDS = 60


class Over(Exception):
    """No more rounds are wanted."""


class Turns:
    """A side's end: `ready` when it is set up, `done` after every round; both return when the next one is to start."""

    def __init__(self):
        # Whatever else writes to the standard output must not end up in the middle of a line of ours.
        self.out = os.fdopen(os.dup(1), "w", buffering=1)

    def ready(self, **facts) -> None:
        self._say(facts)

    def done(self, **facts) -> None:
        self._say({"seconds": time.perf_counter() - self.started} | facts)

    def _say(self, facts: dict) -> None:
        self.out.write(f"\n{MARK}{json.dumps(facts)}\n")
        if not sys.stdin.readline():
            raise Over
        self.started = time.perf_counter()


class Side:
    """The benchmark's end: starts the program, lets it do rounds, and measures its whole process tree.

    Memory is sampled while the program starts (unless `sampled` is False) and in rounds that are not timed: reading it
    takes the kernel some milliseconds per process. A timed round ends with one sample.
    """

    def __init__(self, name: str, command: list[str], path: Path = ROOT, sampled: bool = True):
        self.name = name
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `stop`
        environment = os.environ | {"PYTHONPATH": str(path), "PYTHONUNBUFFERED": "1"}
        environment.pop("RAY_ADDRESS", None)  # never on somebody's cluster
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self.log, text=True, env=environment, cwd=path
        )
        self.peak = 0  # bytes
        started = time.perf_counter()
        with self._sampled() if sampled else nullcontext():
            self.facts = self._hear()
        self.setup = time.perf_counter() - started

    def warm_up(self) -> dict:
        with self._sampled():
            return self._round()

    def round(self) -> dict:
        """What the side reports of one round, with `cpu`: processor seconds of all its processes."""
        before = tree_cpu(self.process.pid)
        answer = self._round()
        answer["cpu"] = tree_cpu(self.process.pid) - before
        self._sample()
        return answer

    def stop(self) -> None:
        """Let it end by itself; end its processes if it does not."""
        tree = processes(self.process.pid)
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        _, left = psutil.wait_procs(tree, timeout=STOP_SECONDS)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _round(self) -> dict:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._hear()

    def _hear(self) -> dict:
        for line in self.process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        self.process.wait()
        self.log.seek(0)
        raise RuntimeError(f"{self.name} ended with {self.process.returncode}:\n{self.log.read()[-3000:]}")

    def _sample(self) -> None:
        self.peak = max(self.peak, tree_pss(self.process.pid))

    def _sampled(self):
        return _Sampling(self._sample)


class _Sampling(threading.Thread):
    """Calls something every half second within a `with` block, and once at its end."""

    def __init__(self, sample, period: float = 0.5):
        super().__init__(daemon=True)
        self.sample, self.period, self.over = sample, period, threading.Event()

    def run(self):
        while not self.over.wait(self.period):
            self.sample()

    def __enter__(self):
        self.start()

    def __exit__(self, *_):
        self.over.set()
        self.join()
        self.sample()


def processes(pid: int) -> list[psutil.Process]:
    """A process with all its descendants that are alive."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def tree_cpu(pid: int) -> float:
    """Seconds of processor time used so far."""
    total = 0.0
    for process in processes(pid):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def tree_pss(pid: int) -> int:
    """Bytes of memory, pages shared between processes counted once."""
    total = 0
    for process in processes(pid):
        with suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total


def here(module: str, *arguments: str) -> list[str]:
    """The command for a side that runs in this environment."""
    return [sys.executable, "-m", f"benchmarks.{module}", *arguments]
