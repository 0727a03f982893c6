"""Callbacks: the interface through which recording, progress, metrics, pictures and trackers follow a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysim.engine.round_metrics import RoundMetrics
    from raysim.engine.simulation import Result


class Callback:
    """Listens to one run, in the driver's process. Override the hooks you need."""

    def on_start(self, settings: dict[str, Any], out: Path) -> None:
        """Called before the first round, with every setting by name and the run directory."""

    def on_round(self, metrics: RoundMetrics) -> str | bool | None:
        """Called once after each round; return True, or the reason as a text, to end the run here.

        Who ends it in a round that was not evaluated finds the accuracy in these metrics later, at the latest when
        `on_result` is called. A round that has to be repeated after a failure is reported again.
        """

    def on_event(self, kind: str, details: dict[str, Any]) -> None:
        """Called when something else happens: an actor is lost, a client fails, the run is resumed."""

    def on_result(self, result: Result) -> dict[str, Any] | None:
        """Called after the last round, while the cluster and its object store are still there.

        What it returns is added to summary.json.
        """

    def on_end(self, summary: dict[str, Any]) -> None:
        """Called at the very end, with the content of summary.json. A failed or interrupted run does not get there."""

    def close(self) -> None:
        """Called once in any case, also after a failure or an interrupt."""


class Callbacks:
    """Several callbacks as one, called in order; of a round the `deciding` ones hear first, as they may end the run."""

    def __init__(self, callbacks: list[Callback], deciding: Sequence[Callback] = ()):
        self.reporting, self.deciding = callbacks, deciding
        self.callbacks = [*callbacks, *deciding]
        self.untold: list[Callback] = []  # of this round

    def on_start(self, settings: dict[str, Any], out: Path) -> None:
        for callback in self.callbacks:
            callback.on_start(settings, out)

    def ask(self, metrics: RoundMetrics) -> str | bool | None:
        """Tell those of a round that may end the run, until one does: the others are told when it is complete."""
        self.untold = [*self.reporting, *self.deciding]
        for callback in self.deciding:
            self.untold.remove(callback)
            if answer := callback.on_round(metrics):
                return answer
        return None

    def tell(self, metrics: RoundMetrics) -> None:
        """Tell all others of the round, whose answers do not count any more."""
        for callback in self.untold:
            callback.on_round(metrics)

    def on_event(self, kind: str, details: dict[str, Any]) -> None:
        for callback in self.callbacks:
            callback.on_event(kind, details)

    def on_result(self, result: Result) -> dict[str, Any]:
        additions: dict[str, Any] = {}
        for callback in self.callbacks:
            additions |= callback.on_result(result) or {}
        return additions

    def on_end(self, summary: dict[str, Any]) -> None:
        for callback in self.callbacks:
            callback.on_end(summary)

    def close(self) -> None:
        for callback in self.callbacks:
            callback.close()
