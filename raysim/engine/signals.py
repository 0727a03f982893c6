"""Signals: an interrupt always ends the process, in order if that works, by force where it does not."""

import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

import psutil

from raysim.engine.ending import ending
from raysim.engine.working_copies import address_of, where_it_is

# Until the process is ended by force. An orderly end takes 3 s, but an interrupt can be lost inside Ray.
FORCE_SECONDS = 20.0

AGAIN_SECONDS = 0.2  # until the main thread is told again of a signal that it has not heard

TERMINATED = signal.SIGUSR2  # what the main thread gets for SIGTERM

PR_SET_PDEATHSIG = 1  # of prctl(2)

LOST = b"\0"  # says that an interrupt was lost: no signal has this number

PARENT = "RAYSIM_PARENT"  # environment variable: the process without which this one has no purpose

spared: set[int] = set()  # processes that end by themselves after this one, since they clear up behind it


def how_to_go_on(run_directory: str) -> str:
    """What to do after the end of a run that was to be written there; empty if there was no run yet."""
    if "://" in run_directory:  # in an object store, which is not asked
        return f"`python -m raysim resume {run_directory}` goes on if it had begun, else give the same command again"
    address = address_of(run_directory)
    what = "give the same command again"
    if run_directory and os.path.exists(os.path.join(run_directory, "config.json")):
        what = f"`python -m raysim resume {address or run_directory}` goes on"
    elif run_directory and os.path.exists(run_directory):
        what += f", with --out {address or run_directory} --resume"
    return f"{what}; {where_it_is(run_directory)}" if address else what


def interrupted_line(run_directory: str | None = None) -> str:
    """The last line of a process that was interrupted, by default at the run it is at."""
    return f"raysim: interrupted; {how_to_go_on(ending.run_directory if run_directory is None else run_directory)}"


class Interrupts:
    """Whether the main thread still has to hear of an interrupt. It hears once: a second would only spoil the end."""

    def __init__(self) -> None:  # no lock: handlers may interrupt each other
        self.heard = self.ignored = False

    @property
    def awaited(self) -> bool:
        """Whether an interrupt is to be raised, if there is one."""
        return not (self.heard or self.ignored)

    def ignore(self) -> None:
        """From now on interrupts do nothing but limit the time: how the command ends is decided."""
        self.ignored = True


@contextmanager
def interruptible(last: bool = False) -> Iterator[Interrupts]:
    """Makes SIGINT and SIGTERM (`ray job stop`, batch systems) raise KeyboardInterrupt; they always end the process.

    With `last` the process ends right after, and goes on to ignore them.
    """
    handlers = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, TERMINATED)}
    interrupts = Interrupts()
    ending.begin()
    before = psutil.Process().children(recursive=True)
    seen, seeing = os.pipe()
    os.set_blocking(seeing, False)
    earlier = signal.set_wakeup_fd(seeing, warn_on_full_buffer=False)  # written to even while the main thread waits

    def unraisable(lost: "sys.UnraisableHookArgs") -> None:
        """An interrupt in a destructor or a callback, where Python goes on as if nothing had happened."""
        if issubclass(lost.exc_type, KeyboardInterrupt):
            os.write(seeing, LOST)
        else:
            earlier_hook(lost)

    def interrupt(signum: int, frame: FrameType | None) -> None:
        in_hook = frame and frame.f_code is unraisable.__code__  # where what is raised is lost: it comes again
        if interrupts.awaited and not in_hook:
            interrupts.heard = ending.interrupted = True  # at once: who catches it as another error has to know
            raise KeyboardInterrupt

    earlier_hook, sys.unraisablehook = sys.unraisablehook, unraisable
    for kind, handler in handlers.items():
        if kind == TERMINATED or callable(handler):  # a shell's background jobs ignore SIGINT
            signal.signal(kind, interrupt)
    watching = threading.Thread(target=_watch, args=(seen, interrupts, before), daemon=True)
    try:
        with _sigterm_told_to_main_thread():
            watching.start()
            ending.hears = signal.getsignal(signal.SIGINT) != signal.default_int_handler
            yield interrupts
    finally:
        interrupts.ignore()
        ending.hears = False
        if not last:
            sys.unraisablehook = earlier_hook
            signal.set_wakeup_fd(earlier)
            os.close(seeing)
            watching.join()  # it must not send a signal that nobody handles any more
            for kind, handler in handlers.items():
                signal.signal(kind, handler)


@contextmanager
def _sigterm_told_to_main_thread() -> Iterator[None]:
    """The main thread gets TERMINATED for the first SIGTERM (`timeout` sends two), whatever handlers there are.

    Ray's core takes SIGTERM for a crash: its handler prints a stack trace, and three seconds later it aborts the
    process. So none is ever called: threads and processes started in here block SIGTERM, and one thread waits for it.
    """
    main, over = threading.main_thread().ident or 0, threading.Event()

    def hear() -> None:
        signal.sigwait({signal.SIGTERM})
        if not over.is_set():
            signal.pthread_kill(main, TERMINATED)
        while not over.is_set():
            signal.sigwait({signal.SIGTERM})

    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    hearing = threading.Thread(target=hear, daemon=True)
    hearing.start()
    try:
        yield
    finally:
        over.set()
        signal.pthread_kill(hearing.ident or 0, signal.SIGTERM)
        hearing.join()
        if signal.SIGTERM in signal.sigpending():
            signal.sigwait({signal.SIGTERM})
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def _watch(seen: int, interrupts: Interrupts, before: list[psutil.Process]) -> None:
    """Read the signals as they come: see that the main thread hears them, and end the process after some time."""
    until: float | None = None
    main = threading.main_thread().ident or 0
    while until is None or time.monotonic() < until:
        pause = None if until is None else max(0.0, until - time.monotonic())
        if pause is not None and interrupts.awaited:
            pause = min(pause, AGAIN_SECONDS)
        if select.select([seen], [], [], pause)[0]:
            byte = os.read(seen, 1)
            if not byte:
                return os.close(seen)
            if byte == LOST:
                interrupts.heard = False
            elif until is None and byte[0] in (signal.SIGINT, TERMINATED):
                ending.interrupt()
                until = time.monotonic() + FORCE_SECONDS
        elif interrupts.awaited:  # it was lost, or came right before a system call, which it did not end
            signal.pthread_kill(main, TERMINATED)
    say_last(interrupted_line())
    end_now(130, before)


def say_last(line: str) -> bool:
    """Print the last line of this process, if nobody else has; whether it was us."""
    if not ending.take():
        return False
    os.write(sys.stderr.fileno(), f"{line}\n".encode())  # the buffered stream's lock may be held
    ending.said()
    return True


def end_with(line: str, before: list[psutil.Process]) -> None:
    """End at once with code 1 and this line, unless the last word has been said; after an interrupt, with that."""
    code = 130 if ending.interrupted else 1
    if say_last(interrupted_line() if ending.interrupted else line):
        end_now(code, before)


def end_now(code: int, before: list[psutil.Process]) -> NoReturn:
    """End at once, with every process started since `before` but spared ones: the main thread may wait for good."""
    for process in psutil.Process().children(recursive=True):
        if process not in before and process.pid not in spared:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    os._exit(code)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, if that has asked for it; a killed one cannot tell."""
    if not (parent := os.environ.pop(PARENT, "")):
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if not psutil.pid_exists(int(parent)):  # it died before
        os._exit(1)


def leave(code: int) -> NoReturn:
    """End the process without taking the interpreter down, which Ray's threads can crash (SIGSEGV)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
