"""TensorBoard: event files in the run directory. `tensorboard --logdir runs` shows all runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from raysim.engine.callbacks import Callback
from raysim.engine.round_metrics import RoundMetrics
from raysim.observe.figures import figures


class TensorBoard(Callback):
    """A callback that writes event files in `tensorboard/` of the run directory."""

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
