"""Writes a run's checkpoints in a thread of its own, while the next round runs."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from raysim.data.object_store import by_reference, identity
from raysim.data.synthetic_tables import table_digest
from raysim.engine.checkpoint import Checkpoint
from raysim.storage.background import BackgroundTask
from raysim.storage.checkpoints import Checkpoints


class ObjectStore(Protocol):
    """What resolves references to objects: either runner of the engine."""

    def get(self, reference: Any) -> Any:
        """The object behind a reference."""


class CheckpointWriter:
    """Writes one checkpoint at a time; the next waits for it, and raises its error if there was one.

    `synced_metrics(rounds)` makes sure that the metrics of so many rounds are on the disk and gives their digest;
    `saved` is called after each checkpoint.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        runner: ObjectStore,
        on_event: Callable[..., None],
        synced_metrics: Callable[[int], str] = lambda rounds: "",
        saved: Callable[[], None] = lambda: None,
    ):
        self.checkpoints, self.runner = checkpoints, runner
        self.on_event, self.synced_metrics, self.saved = on_event, synced_metrics, saved
        self.task: BackgroundTask | None = None
        self.digests: dict[str, tuple[Any, str]] = {}  # part -> which table it shares, and the digest of that

    def save(
        self,
        t: int,
        snapshot: tuple[Any, Any],
        states: Mapping[int, Any],
        shared: Mapping[str, Any],
        begun: dict[str, Any] | None = None,
        stopped: dict[str, Any] | None = None,
    ) -> None:
        """Begin to write the checkpoint after round t. Snapshot, states and shared are references, or hold them."""
        self.wait()
        self.task = BackgroundTask(self._save, t, snapshot, states, shared, begun, stopped)

    def _save(
        self,
        t: int,
        snapshot: tuple[Any, Any],
        states: Mapping[int, Any],
        shared: Mapping[str, Any],
        begun: dict[str, Any] | None,
        stopped: dict[str, Any] | None,
    ) -> None:
        server, since = (self.runner.get(reference) for reference in snapshot)
        of_clients: dict[int, dict[str, Any]] = {}
        for reference, clients in by_reference(states):
            several = dict(self.runner.get(reference))
            of_clients |= {client: several[client] for client in clients}
        tables = {part: (since[part], *self._table(part, reference)) for part, reference in shared.items()}
        self.checkpoints.save(t, server, of_clients, tables, self.synced_metrics(t), begun, stopped)
        self.saved()

    def _table(self, part: str, reference: Any) -> tuple[str, Any]:
        """A table and its digest, which is computed once: that may take seconds."""
        table, (which, known) = self.runner.get(reference), self.digests.get(part, (None, ""))
        if which != identity(reference):
            known = table_digest(table)
            self.digests[part] = identity(reference), known
        return known, table

    def wait(self) -> None:
        """Wait until the last checkpoint is on the disk, and raise its error if there was one."""
        self.finish()  # an interrupt here must find the task still known, so that the run's end waits for it
        task, self.task = self.task, None
        if task:
            task.wait()

    def finish(self) -> None:
        """Wait until nothing is being written any more, with or without success."""
        if self.task:
            self.task.join()

    def load(self) -> Checkpoint | None:
        """The last whole checkpoint; damaged ones are reported as events."""
        self.finish()
        self.task = None  # with its error: only what is on the disk counts now
        return self.checkpoints.load(lambda reason: self.on_event("checkpoint_refused", text=reason))
