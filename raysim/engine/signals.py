"""The end of a process of ours: an interrupt always ends it, in order if that works, by force where it does not."""

import os
import select
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress

import psutil

# For an orderly end, which takes 3 s: an interrupt can meet Ray in a place where it is lost.
FORCE_SECONDS = 20.0

LOST = b"\0"  # no signal has this number

INTERRUPTED = "raysim: interrupted; `python -m raysim resume RUN_DIR` goes on"


@contextmanager
def interruptible():
    """SIGINT and SIGTERM (`ray job stop`, batch systems) raise KeyboardInterrupt, and end the process in any case."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    before = psutil.Process().children(recursive=True)
    seen, seeing = os.pipe()
    os.set_blocking(seeing, False)
    earlier = signal.set_wakeup_fd(seeing, warn_on_full_buffer=False)  # written to even while the main thread waits
    threading.Thread(target=_watch, args=(seen, before), daemon=True).start()

    def unraisable(lost) -> None:  # in a destructor or a callback, where Python goes on as if nothing had been
        if issubclass(lost.exc_type, KeyboardInterrupt):
            os.write(seeing, LOST)
        else:
            told(lost)

    told, sys.unraisablehook = sys.unraisablehook, unraisable
    try:
        yield
    finally:
        sys.unraisablehook = told
        signal.set_wakeup_fd(earlier)
        os.close(seeing)


def _watch(seen: int, before: list[psutil.Process]) -> None:
    """Read the signals as they come: raise one again that was lost, end the process some time after the first."""
    until, last = None, signal.SIGINT
    while select.select([seen], [], [], None if until is None else max(0.0, until - time.monotonic()))[0]:
        byte = os.read(seen, 1)
        if not byte:
            return os.close(seen)
        if byte == LOST:
            time.sleep(0.05)  # until the main thread has left the place
            signal.pthread_kill(threading.main_thread().ident, last)
        elif byte[0] in (signal.SIGINT, signal.SIGTERM):
            last, until = byte[0], until or time.monotonic() + FORCE_SECONDS
    end_now(INTERRUPTED, 130, before)


def end_now(line: str, code: int, before: list[psutil.Process]) -> None:
    """Say it and end at once, with every process started since `before`: the main thread may wait for good."""
    os.write(sys.stderr.fileno(), f"{line}\n".encode())  # the buffered stream's lock may be held
    for process in psutil.Process().children(recursive=True):
        if process not in before:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    os._exit(code)


def leave(code: int) -> None:
    """End without taking the interpreter down: Ray's threads can crash that (SIGSEGV after everything was done)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
