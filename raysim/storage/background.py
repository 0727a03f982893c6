"""Work beside the rounds of a run, in a thread of its own."""

from collections.abc import Callable
from threading import Thread


class BackgroundTask(Thread):
    """Calls `work(*arguments)` in a thread, from now on; `wait` raises its error.

    It is a daemon, so that it cannot keep an interrupted run alive that does not know of it yet.
    """

    def __init__(self, work: Callable[..., object], *arguments: object):
        super().__init__(daemon=True)
        self.work, self.arguments = work, arguments
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Called by the thread."""
        try:
            self.work(*self.arguments)
        except Exception as error:  # noqa: BLE001 - raised again by `wait`, in the thread of the run
            self.error = error
        finally:
            del self.work, self.arguments  # they may hold much memory

    def wait(self) -> None:
        """Wait for the end, and raise the error if there was one."""
        self.join()
        if self.error:
            raise self.error
