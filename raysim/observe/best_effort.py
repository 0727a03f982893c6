"""A guard for pictures and pages: one that cannot be made does not cost anybody a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.engine.callbacks import Callback
from raysim.errors import RaysimError

if TYPE_CHECKING:
    from raysim.engine.simulation import Result


class BestEffort(Callback):
    """A guard around a callback that draws: it reports through `complain` what cannot be made, and the run goes on.

    An error of the disk is not guarded: the next file would meet it too.
    """

    def __init__(self, callback: Callback, files: str, complain: Callable[[str], None]):
        self.callback, self.files, self.complain = callback, files, complain

    def on_start(self, settings: dict[str, Any], out: Path) -> None:
        self._try(self.callback.on_start, settings, out)

    def on_result(self, result: Result) -> dict[str, Any]:
        return self._try(self.callback.on_result, result) or {}

    def on_end(self, summary: dict[str, Any]) -> None:
        self._try(self.callback.on_end, summary)

    def close(self) -> None:
        self.callback.close()

    def _try(self, hook: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return hook(*arguments)
        except RaysimError:
            raise
        except Exception as error:  # noqa: BLE001 - drawing meets any text and any number, and is never worth a run
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self.complain(f"{self.files} could not be made ({reason}); the results are not affected")
            return None
