"""Callbacks: the interface through which recording, progress, metrics, pictures and trackers follow a run."""

from __future__ import annotations

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
        """Called after each round; return True, or the reason as a text, to end the run here.

        A round that has to be repeated after a failure is reported again.
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


class Callbacks(Callback):
    """Several callbacks as one, called in order."""

    def __init__(self, callbacks: list[Callback]):
        self.callbacks = callbacks

    def on_start(self, settings: dict[str, Any], out: Path) -> None:
        for callback in self.callbacks:
            callback.on_start(settings, out)

    def on_round(self, metrics: RoundMetrics) -> str | bool | None:
        """Tell all of them, and then say whether one wants the run to end: the first answer counts."""
        answers = [callback.on_round(metrics) for callback in self.callbacks]
        return next((answer for answer in answers if answer), None)

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
