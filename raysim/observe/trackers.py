"""Other people's experiment tracking: objects that are told of a run's start, every round, and its end."""

import importlib
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path

from raysim.errors import InputError, RaysimError


class Callback:
    """What `--callback MODULE:CLASS` names; made without arguments, in the driver's process. Override what you need."""

    def on_start(self, settings: dict[str, object], out: Path) -> None:
        """Before the first round: every setting by name, and the run directory."""

    def on_round(self, line: dict) -> None:
        """After each, with its line of metrics.jsonl. A round that has to be done again is told again."""

    def on_end(self, summary: dict) -> None:
        """After the last, with what summary.json says. A run that fails or is interrupted has no such end."""


class TensorBoard(Callback):
    """Event files in `tensorboard/` of the run directory, where the package `tensorboard` is installed."""

    def on_start(self, settings, out):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.event, self.session, self.summary = event_pb2.Event, event_pb2.SessionLog, summary_pb2.Summary
        self.writer = EventFileWriter(str(out / "tensorboard"))
        self.told = None  # the last round

    def on_round(self, line):
        if self.told is None or line["round"] <= self.told:  # what is there from this round on holds no more
            self._write(line["round"], session_log=self.session(status=self.session.START))
        self.told = line["round"]
        values = [self.summary.Value(tag=name, simple_value=value) for name, value in figures(line).items()]
        self._write(line["round"], summary=self.summary(value=values))
        self.writer.flush()

    def on_end(self, summary):
        self.writer.close()

    def _write(self, step: int, **content) -> None:
        self.writer.add_event(self.event(wall_time=time.time(), step=step, **content))


def figures(line: dict) -> dict[str, float]:
    """The numbers in a line of metrics.jsonl by name, those of a dict in it as `terms/fedprox`; but not the round."""
    flat = {key: value for key, value in line.items() if key != "round"}
    for key, value in line.items():
        if isinstance(value, dict):
            flat |= {f"{key}/{name}": inner for name, inner in value.items()}
    return {name: float(value) for name, value in flat.items() if isinstance(value, int | float)}


class Callbacks:
    """Those of `--callback a:B,c:D`, and TensorBoard's if it is installed.

    One that raises at the start ends the run. Later it is said, recorded and left out from then on: a tracker that
    cannot be reached is no reason to lose a run.
    """

    def __init__(self, names: str | None):
        self.held: list[Callback] = [TensorBoard()] if importlib.util.find_spec("tensorboard") else []
        self.held += [_make(name.strip()) for name in names.split(",")] if names else []

    def start(self, settings: dict[str, object], out: Path) -> None:
        for callback in self.held:
            try:
                callback.on_start(settings, out)
            except Exception as error:
                what = _described(callback, "on_start", error)
                raise RaysimError(f"{what}; put that right or leave it out") from error

    def tell(self, hook: str, what: dict, complain: Callable[[str], None]) -> None:
        """`on_round` or `on_end`."""
        for callback in list(self.held):
            try:
                getattr(callback, hook)(what)
            except Exception as error:  # noqa: BLE001 - anything may go wrong in there, and is said
                self.held.remove(callback)
                complain(f"{_described(callback, hook, error)}; the run goes on without it")


def _described(callback: Callback, hook: str, error: Exception) -> str:
    reason = " ".join(str(error).split())
    return f"--callback {type(callback).__module__}:{type(callback).__name__}.{hook}: {type(error).__name__}: {reason}"


def _make(name: str) -> Callback:
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise InputError(f"--callback '{name}': write MODULE:CLASS, for example my_lab.tracking:Mlflow")
    try:
        return getattr(importlib.import_module(module), attribute)()
    except Exception as error:
        raise InputError(f"--callback {name}: {type(error).__name__}: {error}") from error
