"""A client actor's worker that dies while it adds up its node's sums for the second time."""

import os
import signal

from raysim.engine.worker import Worker


class DoomedAdder(Worker):
    """Kills its own process in every second `add` of several sums."""

    added = 0

    def add(self, sums, *arrived):
        self.added += sums > 1
        if sums > 1 and self.added % 2 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().add(sums, *arrived)
