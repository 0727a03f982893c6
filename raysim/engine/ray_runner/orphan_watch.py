"""A process beside a run, for what the run cannot do once it is gone: killed, or ended by Ray without a word.

Of a Ray of its own it ends what stays: the daemons go with the run, but the agents first try for a minute to tell them.
On a cluster it says so where the head is gone: Ray ends the run at once if that was also its node.
"""

import select
import socket
import sys
import time
from contextlib import suppress

import psutil

ALONE_SECONDS = 5.0  # in which most end by themselves

HEAD_GONE = (
    "raysim: the head of the cluster is gone ({}); start a new one, then `python -m raysim resume RUN_DIR` goes on"
)


def connect(address: str) -> None:
    """Whether somebody listens at host:port; an OSError if not."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def watch(run: int, head: str | None) -> None:
    """Until a byte comes from the run, which has then ended in order, or its end without one."""
    began, family = time.monotonic(), set()
    # Who belongs to it changes while it starts; later only actors come and go, and they end with Ray.
    while not select.select([sys.stdin], [], [], 1.0 if time.monotonic() - began < 30 else 30.0)[0]:
        with suppress(psutil.NoSuchProcess):
            family |= set(psutil.Process(run).children(recursive=True)) - {psutil.Process()}
    if sys.stdin.buffer.read(1):
        return
    if head:
        try:
            connect(head)
        except OSError:
            sys.stderr.write(f"{HEAD_GONE.format(head)}\n")
        return
    time.sleep(ALONE_SECONDS)
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()  # nobody else who has its number by now


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
