"""Weights & Biases: settings, metrics of every round, the summary and the report.

Where to and as what is for wandb's own variables to say: WANDB_MODE (`offline` needs no account), WANDB_PROJECT
(`raysim`), WANDB_ENTITY, WANDB_DIR, WANDB_API_KEY.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from raysim.engine.callbacks import Callback
from raysim.engine.round_metrics import RoundMetrics
from raysim.observe.figures import figures
from raysim.storage.formats import read_json


class Wandb(Callback):
    """A callback that writes one run of wandb, with which a resumed run goes on."""

    def __init__(self) -> None:
        self.run: Any = None

    def on_start(self, settings: dict[str, Any], out: Path) -> None:
        import wandb

        self.html, self.out = wandb.Html, out
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "raysim"),
            id=read_json(out / "config.json", {})["run"],
            name=out.name,
            config=settings,
            resume="allow",
            reinit="create_new",  # beside a run of the user's own
            settings=wandb.Settings(silent=True, console="off"),
        )

    def on_round(self, metrics: RoundMetrics) -> None:
        self.run.log(figures(metrics), step=metrics.round)

    def on_end(self, summary: dict[str, Any]) -> None:
        self.run.log({"report": self.html(str(self.out / "report.html"))}, step=summary["rounds"])
        self.run.summary.update({key: value for key, value in summary.items() if not isinstance(value, dict)})
        self._finish(0)

    def close(self) -> None:
        self._finish(1)  # the run did not get to its end

    def _finish(self, code: int) -> None:
        run, self.run = self.run, None
        if run:
            run.finish(exit_code=code)
