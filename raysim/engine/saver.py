"""Writes a run's checkpoints in a thread of its own, while the next round runs."""

from concurrent.futures import Future, ThreadPoolExecutor

from raysim.engine.checkpoint import Checkpoint, Checkpoints


class Saver:
    """One checkpoint is written at a time; the next waits for it, and gets its error if there was one."""

    def __init__(self, checkpoints: Checkpoints, runner, on_event):
        self.checkpoints, self.runner, self.on_event = checkpoints, runner, on_event
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.pending: Future | None = None

    def save(self, t: int, snapshot, states: dict[int, object], shared: dict[str, object]) -> None:
        """All arguments but the round are references, or hold them."""
        self.wait()
        self.pending = self.thread.submit(self._save, t, snapshot, states, shared)

    def _save(self, t, snapshot, states, shared) -> None:
        server, since = (self.runner.get(part) for part in snapshot)
        held = {client: dict(self.runner.get(reference))[client] for client, reference in states.items()}
        tables = {part: (since[part], self.runner.get(reference)) for part, reference in shared.items()}
        self.checkpoints.save(t, server, held, tables)

    def wait(self) -> None:
        """Until what was given is on the disk."""
        pending, self.pending = self.pending, None
        if pending:
            pending.result()

    def load(self) -> Checkpoint | None:
        """The last whole checkpoint; damaged ones are named in the events."""
        if self.pending:
            self.pending.exception()  # whatever became of it: what is whole on the disk counts
            self.pending = None
        return self.checkpoints.load(lambda reason: self.on_event("checkpoint_refused", text=reason))
