"""Experiment trackers: TensorBoard, and the classes that users name with `--callback` (docs/tracking.md)."""

from __future__ import annotations

import importlib
import importlib.util
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.engine.callbacks import Callback
from raysim.engine.round_metrics import RoundMetrics
from raysim.errors import InputError, RaysimError
from raysim.settings import Given

if TYPE_CHECKING:
    from raysim.engine.simulation import Result

__all__ = ["Callback", "Guarded", "TensorBoard", "figures", "load_trackers"]


def load_trackers(names: str | None) -> list[Guarded]:
    """The callbacks of `--callback MODULE:CLASS,…`, each guarded, after TensorBoard's if that is installed."""
    callbacks: list[Callback] = [TensorBoard()] if importlib.util.find_spec("tensorboard") else []
    if isinstance(names, Given):  # objects, given in Python
        callbacks += names.value
    else:
        callbacks += [_make(name.strip()) for name in names.split(",")] if names else []
    return [Guarded(callback) for callback in callbacks]


def _make(name: str) -> Callback:
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise InputError(f"--callback '{name}': write MODULE:CLASS, for example my_lab.tracking:Mlflow")
    try:
        return getattr(importlib.import_module(module), attribute)()
    except Exception as error:
        raise InputError(f"--callback {name}: {type(error).__name__}: {error}") from error


def figures(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round by name, without its number and format; those of a dict in it as `terms/fedprox`."""
    flat = {key: value for key, value in line.items() if key not in ("format", "round")}
    for key, value in line.items():
        if isinstance(value, dict):
            flat |= {f"{key}/{name}": inner for name, inner in value.items()}
    return {name: float(value) for name, value in flat.items() if isinstance(value, int | float)}


class Guarded(Callback):
    """A user's callback, guarded so that its errors do not end the run.

    An error in `on_start` ends the run: nothing is lost yet, and the user can put it right. A later one is reported
    once through `complain`, and the callback gets no further calls but `close`. Hooks it does not have are left out.
    """

    def __init__(self, callback: Callback):
        self.callback = callback
        self.complain: Callable[[str], None] = lambda text: None  # raysim/single_run.py sets it
        self.dropped = False

    def on_start(self, settings: dict[str, Any], out: Path) -> None:
        try:
            self._hook("on_start")(settings, out)
        except Exception as error:
            raise RaysimError(f"{self._describe('on_start', error)}; put that right or leave it out") from error

    def on_round(self, metrics: RoundMetrics) -> str | None:
        """True ends the run; any other value is no answer, since trackers may return what they please."""
        return f"{self._name} ended the run" if self._call("on_round", metrics) is True else None

    def on_event(self, kind: str, details: dict[str, Any]) -> None:
        self._call("on_event", kind, details)

    def on_result(self, result: Result) -> dict[str, Any]:
        return self._call("on_result", result) or {}

    def on_end(self, summary: dict[str, Any]) -> None:
        self._call("on_end", summary)

    def close(self) -> None:
        """Called also where the callback was dropped: it may hold a connection or a file."""
        try:
            self._hook("close")()
        except Exception as error:  # noqa: BLE001 - as in _call
            self._drop("close", error)

    def _hook(self, name: str) -> Callable[..., Any]:
        return getattr(self.callback, name, lambda *arguments: None)

    def _call(self, name: str, *arguments: Any) -> Any:
        """What the hook returns; None if it raises or the callback was dropped before."""
        if self.dropped:
            return None
        try:
            answer = self._hook(name)(*arguments)
            if name == "on_result":
                json.dumps(dict(answer or {}))  # it goes into summary.json
            return answer
        except Exception as error:  # noqa: BLE001 - anything may go wrong in other people's code, and is reported
            self._drop(name, error)
            return None

    def _drop(self, name: str, error: Exception) -> None:
        """Leave the callback out from now on, and say why, the first time."""
        if not self.dropped:
            self.dropped = True  # first: `complain` may call on_event of every callback
            self.complain(f"{self._describe(name, error)}; the run goes on without it")

    def _describe(self, hook: str, error: Exception) -> str:
        reason = " ".join(str(error).split())
        return f"{self._name}.{hook}: {type(error).__name__}: {reason}"

    @property
    def _name(self) -> str:
        kind = type(self.callback)
        return f"--callback {kind.__module__}:{kind.__name__}"


class TensorBoard(Callback):
    """Event files in `tensorboard/` of the run directory, where the package `tensorboard` is installed."""

    def __init__(self) -> None:
        self.writer: Any = None
        self.last = 0  # the round that was written last

    def on_start(self, settings: dict[str, Any], out: Path) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.event, self.session, self.summary = event_pb2.Event, event_pb2.SessionLog, summary_pb2.Summary
        self.writer = EventFileWriter(str(out / "tensorboard"))

    def on_round(self, metrics: RoundMetrics) -> None:
        if not self.last or metrics.round <= self.last:  # earlier values of this round and later ones are void
            self._write(metrics.round, session_log=self.session(status=self.session.START))
        self.last = metrics.round
        values = [self.summary.Value(tag=name, simple_value=value) for name, value in figures(metrics).items()]
        self._write(metrics.round, summary=self.summary(value=values))
        self.writer.flush()

    def close(self) -> None:
        if self.writer:
            self.writer.close()

    def _write(self, step: int, **content: Any) -> None:
        self.writer.add_event(self.event(wall_time=time.time(), step=step, **content))
