"""A process beside a run that has a Ray of its own: where the run is killed, it ends what Ray leaves behind.

Ray's daemons go with the run, but its agents first try for a minute to tell them that they are gone.
"""

import select
import sys
import time
from contextlib import suppress

import psutil

ALONE_SECONDS = 5.0  # in which most end by themselves


def watch(run: int) -> None:
    """Until a byte comes from the run's standard input, or its end does."""
    began, family = time.monotonic(), set()
    # Who belongs to it changes while it starts; later only actors come and go, and they end with Ray.
    while not select.select([sys.stdin], [], [], 1.0 if time.monotonic() - began < 30 else 30.0)[0]:
        with suppress(psutil.NoSuchProcess):
            family |= set(psutil.Process(run).children(recursive=True)) - {psutil.Process()}
    if sys.stdin.buffer.read(1):
        return  # it has ended in order
    time.sleep(ALONE_SECONDS)
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()  # nobody else who has its number by now


if __name__ == "__main__":
    watch(int(sys.argv[1]))
