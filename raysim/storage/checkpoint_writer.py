"""Writes a run's checkpoints in a thread of its own, while the next round runs."""

from collections.abc import Callable
from threading import Thread

from raysim.storage.checkpoints import Checkpoint, Checkpoints


class Aside(Thread):
    """Does something beside the run, from now on; `wait` raises its error.

    A daemon: it cannot keep an interrupted run alive, which may not even know of it yet.
    """

    def __init__(self, work: Callable, *arguments):
        super().__init__(daemon=True)
        self.work, self.arguments = work, arguments
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.work(*self.arguments)
        except Exception as error:  # noqa: BLE001 - raised again by `wait`, in the thread of the run
            self.error = error
        finally:
            del self.work, self.arguments  # they may hold much

    def wait(self) -> None:
        self.join()
        if self.error:
            raise self.error


class Saver:
    """One checkpoint is written at a time; the next waits for it, and gets its error if there was one.

    `metrics` gets those of so many rounds to the disk, and gives their digest.
    """

    def __init__(self, checkpoints: Checkpoints, runner, on_event, metrics: Callable[[int], str] = lambda rounds: ""):
        self.checkpoints, self.runner, self.on_event, self.metrics = checkpoints, runner, on_event, metrics
        self.thread: Aside | None = None

    def save(
        self, t: int, snapshot, states: dict[int, object], shared: dict[str, object], begun: dict | None = None
    ) -> None:
        """Snapshot, states and shared are references, or hold them."""
        self.wait()
        self.thread = Aside(self._save, t, snapshot, states, shared, begun)

    def _save(self, t, snapshot, states, shared, begun) -> None:
        server, since = (self.runner.get(part) for part in snapshot)
        held = {client: dict(self.runner.get(reference))[client] for client, reference in states.items()}
        tables = {part: (since[part], self.runner.get(reference)) for part, reference in shared.items()}
        self.checkpoints.save(t, server, held, tables, self.metrics(t), begun)

    def wait(self) -> None:
        """Until what was given is on the disk."""
        self.finish()
        thread, self.thread = self.thread, None
        if thread:
            thread.wait()

    def finish(self) -> None:
        """Until nothing is being written, whatever became of it."""
        if self.thread:
            self.thread.join()

    def load(self) -> Checkpoint | None:
        """The last whole checkpoint; damaged ones are named in the events."""
        self.finish()
        self.thread = None  # with its error: what is whole on the disk counts
        return self.checkpoints.load(lambda reason: self.on_event("checkpoint_refused", text=reason))
