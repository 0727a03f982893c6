"""A process beside a run, for what the run cannot do once it is gone: killed, or ended by Ray without a word.

Where the run has not said its last word, it says in one line what died, and how to go on. Of a Ray of the run's own it
ends what stays (the daemons go with the run, but the agents first try for a minute to tell them) and deletes its files.

The run tells through a pipe how it stands, a word per line, and its end closes the pipe:
running: Ray has started. interrupted: by a signal. stopping: Ray is shut down. over: it is gone. said: the last word.
We tell the run through another which of its Ray's processes have died.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from raysim.engine.ray_runner import private_folder
from raysim.engine.signals import how_to_go_on, interrupted_line, spared

MOST_WATCHERS = 10  # that are started in a run: if so many are killed, somebody means it
ALONE_SECONDS = 2.0  # in which most end by themselves
CAUSE_SECONDS = 60.0  # that a death may precede the end of the run it is to blame for; a raylet follows its agents
START_LOOK_SECONDS, LOOK_SECONDS = 0.25, 30.0  # between looks at who belongs to the run: later only actors come and go

# The processes a Ray cannot do without, by their names, and who starts them: the run, or the raylet.
DAEMONS = {"raylet": "raylet", "gcs_server": "GCS"}
AGENTS = {"ray::DashboardAgent": "dashboard agent", "ray::RuntimeEnvAgent": "runtime-env agent"}
# By their scripts until they have named themselves: on a busy machine that takes longer than the run's start.
SCRIPTS = {"/ray/dashboard/agent.py": "dashboard agent", "/ray/_private/runtime_env/agent/main.py": "runtime-env agent"}
DRIVER = "driver"


def connect(address: str) -> None:
    """Whether somebody listens at host:port; an OSError if not."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def agent_of(command: list[str]) -> str | None:
    """Which of Ray's agents has this command line, if one has."""
    ends = (title for script, title in SCRIPTS.items() if any(word.endswith(script) for word in command))
    return AGENTS.get(command[0]) or next(ends, None)


def obituary(who: str, started: bool, run_directory: str) -> str:
    """The line that says what died and how to go on."""
    what = "the driver of the run" if who == DRIVER else f"Ray's {who}"
    return f"raysim: {what} died{'' if started else ' while Ray was starting'}; {how_to_go_on(run_directory)}"


def head_gone(head: str, died: list[str]) -> str:
    """The line for a head nobody answers at any more; what has died on this machine before it may be why."""
    cause = f"Ray's {died[0]} died, and " if died else ""
    return (
        f"raysim: {cause}the head of the cluster is gone ({head}); "
        "start a new one, then `python -m raysim resume RUN_DIR` goes on"
    )


class Watch:
    """The run's end of the pipes. Another process takes the place of one that was killed, while somebody hears it."""

    def __init__(
        self,
        environment: dict[str, str],
        run_directory: str,
        head: str = "",
        raylet: str = "",
        folder: Path | None = None,
    ):
        """`folder`: where the files of the run's own Ray are. On a cluster: its head, and our raylet's socket."""
        self.run_directory, self.reported = run_directory, set[str]()
        self.command = [
            sys.executable,
            "-m",
            __name__,
            str(os.getpid()),
            head,
            raylet,
            str(folder or ""),
            run_directory,
        ]
        self.environment = environment
        self.changing = threading.Lock()
        self.process = self._start()

    def _start(self) -> subprocess.Popen:
        # In a session of its own: Ctrl-C is not for it.
        process = subprocess.Popen(
            self.command, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            start_new_session=True,
        )  # fmt: skip
        spared.add(process.pid)
        return process

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to watch for."""
        return {"over", "said"} <= self.reported

    def tell(self, word: str) -> None:
        """Say how the run stands; it ends once it has heard that Ray is over and the last word said."""
        with self.changing:
            self.reported.add(word)
            self._write(word)
        if self.finished:
            self.process.wait()

    def _write(self, word: str) -> None:
        if self.process.stdin:
            with suppress(OSError):  # it was killed
                self.process.stdin.write(f"{word}\n".encode())

    def deaths(self) -> Iterator[str]:
        """What of its Ray has died, in that order, until the run is over."""
        for _ in range(MOST_WATCHERS):
            if self.process.stdout:
                for line in self.process.stdout:
                    yield line.decode().strip()
            with self.changing:
                if self.finished:
                    return
                self.process = self._start()
                for word in self.reported:
                    self._write(word)


class Watcher:
    """What the process beside the run does."""

    def __init__(self, run: int, head: str, raylet: str, folder: str, run_directory: str):
        self.run, self.head, self.raylet, self.folder, self.run_directory = run, head, raylet, folder, run_directory
        self.reported: set[str] = set()  # what the run has said
        self.family: set[psutil.Process] = set()
        self.died: dict[str, float] = {}  # which of Ray's processes died before the run did, and when
        self.poll = select.poll()
        self.patient_until = time.monotonic() + CAUSE_SECONDS
        self.names: dict[int, str] = {}  # by file descriptors that tell when the process ends

    def watch(self) -> None:
        """Until the run has ended; then do and say what it has not."""
        self.poll.register(0, select.POLLIN)
        self.look()
        while True:
            pause = LOOK_SECONDS if self.started and self.complete else START_LOOK_SECONDS
            ready = {fd for fd, _ in self.poll.poll(1000 * pause)}
            if 0 in ready:
                if not (words := os.read(0, 4096)):
                    if self.head:  # a raylet that has just died ended the run
                        for fd in ready & self.names.keys():
                            self.note_death(fd)
                    break
                self.reported |= set(words.decode().split())
                if {"over", "said"} <= self.reported:
                    return
            for fd in ready & self.names.keys():
                self.note_death(fd)
            self.look()
        if "said" not in self.reported:
            with suppress(OSError):
                os.write(2, f"{self.last_line()}\n".encode())
        if not self.head and "over" not in self.reported:
            self.clear_up()

    @property
    def started(self) -> bool:
        """Whether Ray is up; we are started beside a cluster only once the run has connected to it."""
        return bool(self.head) or "running" in self.reported

    @property
    def complete(self) -> bool:
        """Whether all who have to live have been found, or will not be any more: agents may come after the start."""
        return bool(self.head) or len(self.names) == len(DAEMONS | AGENTS) or time.monotonic() > self.patient_until

    def look(self) -> None:
        """Find out who belongs to the run, and who of them has to live."""
        with suppress(psutil.Error):
            self.family |= set(psutil.Process(self.run).children(recursive=True)) - {psutil.Process()}
        for process in self._of_cluster() if self.head else self.family:
            with suppress(psutil.Error, OSError, IndexError, AttributeError):  # pidfd_open: Linux only
                # A process that has just been forked still has the name of who forked it.
                wanted = self.head or process.ppid() == self.run
                title = (wanted and DAEMONS.get(process.name())) or agent_of(process.cmdline())
                if title and title not in self.names.values():
                    descriptor = os.pidfd_open(process.pid)
                    self.names[descriptor] = title
                    self.poll.register(descriptor, select.POLLIN)

    def _of_cluster(self) -> list[psutil.Process]:
        """The raylet that the run is connected to, which ends it with itself, and the agents that end the raylet."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.name() == "raylet" and any(self.raylet in word for word in process.cmdline()):
                    return [process, *process.children()]
        return []

    def note_death(self, descriptor: int) -> None:
        """One of Ray's processes has ended.

        If a run that has a Ray of its own has ended, too, it was the first, for they are killed with it.
        """
        self.poll.unregister(descriptor)
        if "stopping" in self.reported:
            return
        with suppress(psutil.Error):
            if self.head or psutil.Process(self.run).status() != psutil.STATUS_ZOMBIE:
                self.died[self.names[descriptor]] = time.monotonic()
                with suppress(OSError):
                    os.write(1, f"{self.names[descriptor]}\n".encode())

    def last_line(self) -> str:
        """What there is to say about the end of a run that has not spoken."""
        if "interrupted" in self.reported:
            return interrupted_line(self.run_directory)
        recently = [who for who, when in self.died.items() if time.monotonic() - when < CAUSE_SECONDS]
        if self.head:
            try:
                connect(self.head)
            except OSError:
                return head_gone(self.head, recently)
        return obituary(recently[0] if recently else DRIVER, self.started, self.run_directory)

    def clear_up(self) -> None:
        """End what is left of the run's own Ray, and delete its files."""
        _, left = psutil.wait_procs(list(self.family), timeout=0 if "said" in self.reported else ALONE_SECONDS)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()  # nobody else who has its number by now
        psutil.wait_procs(left, timeout=5)
        if self.folder:
            private_folder.remove(Path(self.folder))


if __name__ == "__main__":
    for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a batch system may send them to every process
        signal.signal(kind, signal.SIG_IGN)
    Watcher(int(sys.argv[1]), *sys.argv[2:6]).watch()
