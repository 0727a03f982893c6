"""Writes a run's checkpoints in a thread of its own, while the next round runs."""

from threading import Thread

from raysim.engine.checkpoint import Checkpoint, Checkpoints


class Saver:
    """One checkpoint is written at a time; the next waits for it, and gets its error if there was one."""

    def __init__(self, checkpoints: Checkpoints, runner, on_event):
        self.checkpoints, self.runner, self.on_event = checkpoints, runner, on_event
        self.thread: Thread | None = None
        self.error: Exception | None = None

    def save(self, t: int, snapshot, states: dict[int, object], shared: dict[str, object]) -> None:
        """All arguments but the round are references, or hold them."""
        self.wait()
        # A daemon: an interrupt may come between its start and our knowing of it, and must not leave it waited for.
        self.thread = Thread(target=self._save, args=(t, snapshot, states, shared), daemon=True)
        self.thread.start()

    def _save(self, t, snapshot, states, shared) -> None:
        try:
            server, since = (self.runner.get(part) for part in snapshot)
            held = {client: dict(self.runner.get(reference))[client] for client, reference in states.items()}
            tables = {part: (since[part], self.runner.get(reference)) for part, reference in shared.items()}
            self.checkpoints.save(t, server, held, tables)
        except Exception as error:  # noqa: BLE001 - raised again by `wait`, in the thread of the run
            self.error = error

    def wait(self) -> None:
        """Until what was given is on the disk."""
        self.finish()
        if error := self.error:
            self.error = None
            raise error

    def finish(self) -> None:
        """Until nothing is being written, whatever became of it."""
        if self.thread:
            self.thread.join()
            self.thread = None

    def load(self) -> Checkpoint | None:
        """The last whole checkpoint; damaged ones are named in the events."""
        self.finish()
        self.error = None  # what is whole on the disk counts
        return self.checkpoints.load(lambda reason: self.on_event("checkpoint_refused", text=reason))
