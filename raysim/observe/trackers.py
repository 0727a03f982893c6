"""Experiment trackers: those with a name (`--track`), and classes of users' own (`--callback`); docs/tracking.md."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim import discovery
from raysim.engine.callbacks import Callback
from raysim.engine.round_metrics import RoundMetrics
from raysim.errors import InputError, RaysimError
from raysim.observe import tracking
from raysim.observe.figures import figures
from raysim.settings import Given, nearest

if TYPE_CHECKING:
    from raysim.engine.simulation import Result

__all__ = ["Callback", "Guarded", "figures", "load_trackers"]


def load_trackers(track: str | None, callback: str | None) -> list[Guarded]:
    """The trackers of `--track NAME,…` and the callbacks of `--callback MODULE:CLASS,…`, each guarded.

    TensorBoard's is among them wherever that is installed.
    """
    names = [name.strip() for name in track.split(",")] if track else []
    if "tensorboard" not in names and importlib.util.find_spec("tensorboard"):
        names.insert(0, "tensorboard")
    trackers = [Guarded(_named(name), f"--track {name}") for name in dict.fromkeys(names)]
    if isinstance(callback, Given):  # objects, given in Python
        return trackers + [Guarded(each) for each in callback.value]
    return trackers + ([Guarded(_make(name.strip())) for name in callback.split(",")] if callback else [])


def _named(name: str) -> Callback:
    """The tracker of this name: the class in its file."""
    known = discovery.files(tracking.__path__)
    if name not in known:
        listed = ", ".join(known)
        raise InputError(f"--track: unknown tracker '{name}'{nearest(name, known, f'; there are {listed}')}")
    if not importlib.util.find_spec(name):
        raise InputError(f"--track {name} needs the package {name}: pip install 'raysim[{name}]'")
    return discovery.the_class(importlib.import_module(f"{tracking.__name__}.{name}"), Callback)()


def _make(name: str) -> Callback:
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise InputError(f"--callback '{name}': write MODULE:CLASS, for example my_lab.tracking:Mlflow")
    try:
        return getattr(importlib.import_module(module), attribute)()
    except (Exception, SystemExit) as error:
        raise InputError(f"--callback {name}: {type(error).__name__}: {error}") from error


class Guarded(Callback):
    """A user's callback, guarded so that its errors do not end the run.

    An error in `on_start` ends the run: nothing is lost yet, and the user can put it right. A later one is reported
    once through `complain`, and the callback gets no further calls but `close`. Hooks it does not have are left out.
    """

    def __init__(self, callback: Callback, name: str = ""):
        """`name`: of a tracker of ours; without it the callback is the user's own."""
        kind = type(callback)
        self.callback, self._name = callback, name or f"--callback {kind.__module__}:{kind.__name__}"
        self.own = not name
        self.complain: Callable[[str], None] = lambda text: None  # raysim/single_run.py sets it
        self.dropped = False

    def on_start(self, settings: dict[str, Any], out: Path) -> None:
        try:
            self._hook("on_start")(settings, out)
        except (Exception, SystemExit) as error:
            raise RaysimError(f"{self._describe('on_start', error)}; put that right or leave it out") from error

    def on_round(self, metrics: RoundMetrics) -> str | None:
        """True ends the run, and so does a text, the reason; other values do not: trackers return what they please."""
        answer = self._call("on_round", metrics)
        if isinstance(answer, str):
            return " ".join(answer.encode(errors="replace").decode().split()) or None
        return f"{self._name} ended the run" if isinstance(answer, bool | np.bool_) and answer else None

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
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as in _call
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
        except (Exception, SystemExit) as error:  # noqa: BLE001 - anything may go wrong in other people's code, and is said
            self._drop(name, error)
            return None

    def _drop(self, name: str, error: BaseException) -> None:
        """Leave the callback out from now on, and say why, the first time."""
        if not self.dropped:
            self.dropped = True  # first: `complain` may call on_event of every callback
            self.complain(f"{self._describe(name, error)}; the run goes on without it")

    def _describe(self, hook: str, error: BaseException) -> str:
        reason = " ".join(str(error).split())
        return f"{self._name}.{hook}: {type(error).__name__}: {reason}"
