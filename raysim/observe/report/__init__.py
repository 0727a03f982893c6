"""The report: a self-contained page about a run (`write_report`), or about several side by side (`write_comparison`).

It is made from run directories alone. The page loads nothing: data, style and scripts are in it (`assets/`).
"""

from pathlib import Path
from typing import Any

from raysim.engine.callbacks import Callback
from raysim.observe.report.comparison import write_comparison
from raysim.observe.report.single import write_report

__all__ = ["ReportWriter", "write_comparison", "write_report"]


class ReportWriter(Callback):
    """A callback that writes report.html at the end of a run, from its directory."""

    def on_start(self, settings: dict[str, Any], out: Path) -> None:
        self.out = out

    def on_end(self, summary: dict[str, Any]) -> None:
        write_report(self.out)
