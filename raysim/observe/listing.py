"""`raysim show`: one line per run, with the settings in which the runs differ and how accurate they became."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysim.config import RunConfig
from raysim.engine.round_metrics import late_mean
from raysim.errors import InputError
from raysim.observe.progress import duration
from raysim.observe.report.page import text_of
from raysim.settings import nearest
from raysim.storage.run_reader import Run, find_runs, read_run
from raysim.tables import NONE, Table

ALWAYS = ("method", "dataset")  # what is told of runs that do not differ in anything
FIGURES = {"final": "final %", "best": "best %", "late": "last quarter %", "seconds": "time"}
UNSORTED = "run"


@dataclass(frozen=True)
class Line:
    """What there is to say of one run; figures are None where no round has been evaluated yet."""

    run: str
    settings: dict[str, Any]  # those that differ between the runs
    rounds: int
    of_rounds: int
    finished: bool
    final: float | None
    best: float | None
    late: float | None
    seconds: float

    def plain(self) -> dict[str, Any]:
        """The line as JSON and CSV have it; accuracies are between 0 and 1."""
        figures = {"final_accuracy": self.final, "best_accuracy": self.best, "late_accuracy": self.late}
        state = {"rounds": self.rounds, "finished": self.finished}
        return {"run": self.run} | self.settings | state | figures | {"seconds": self.seconds}

    def cells(self) -> list[str]:
        """The line as people read it."""
        rounds = f"{self.rounds:,}" if self.finished else f"{self.rounds:,} of {self.of_rounds:,}"
        accuracies = [NONE if value is None else f"{100 * value:.2f}" for value in (self.final, self.best, self.late)]
        settings = [text_of(value) for value in self.settings.values()]
        return [self.run, *settings, rounds, *accuracies, duration(self.seconds)]


def lines(paths: Sequence[str | Path], sort: str = "final", top: int | None = None) -> list[Line]:
    """A line for each of these runs, or of the runs in these folders: the most accurate first.

    `sort` is one of FIGURES, `run` for the order of the paths, or a setting in which the runs differ.
    """
    runs = [read_run(path) for path in find_runs(paths)]
    varied = differing(runs) or [key for key in ALWAYS if key in runs[0].settings]
    found = [_line(run, varied) for run in runs]
    if sort != UNSORTED:
        found.sort(key=_order(sort, varied))
    return found[:top]


def differing(runs: Sequence[Run]) -> list[str]:
    """The settings that decide the result and have different values in two of these runs that both have them."""
    ignored = {*RunConfig.operational(), "rounds"}  # which a line has in any case
    keys = dict.fromkeys(key for run in runs for key in run.settings if key not in ignored)
    return [key for key in keys if len({json.dumps(run.settings[key]) for run in runs if key in run.settings}) > 1]


def _line(run: Run, varied: list[str]) -> Line:
    accuracies = [metrics.accuracy or 0.0 for metrics in run.evaluated]
    summary = run.summary
    return Line(
        run=str(run.path),
        settings={key: run.settings.get(key) for key in varied},
        rounds=len(run.history),
        of_rounds=run.settings["rounds"],
        finished=bool(summary),
        final=accuracies[-1] if accuracies else None,
        best=max(accuracies, default=None),
        late=late_mean(accuracies) if accuracies else None,
        seconds=summary.get("seconds", sum(metrics.seconds for metrics in run.history)),
    )


def _order(sort: str, varied: list[str]) -> Callable[[Line], Any]:
    """The key by which lines are sorted: accuracies from high to low, seconds and settings from low to high."""
    if sort in ("final", "best", "late"):
        return lambda line: (getattr(line, sort) is None, -(getattr(line, sort) or 0.0))
    if sort == "seconds":
        return lambda line: line.seconds
    key = sort.removeprefix("--").replace("-", "_")
    if key not in varied:
        known = [*FIGURES, UNSORTED, *varied]
        hint = nearest(key, known, f"; there are {', '.join(known)}")
        raise InputError(f"show: the runs cannot be sorted by '{sort}'{hint}")

    def by_setting(line: Line) -> tuple[int, Any]:
        value = line.settings[key]
        return (2, "") if value is None else (0, value) if isinstance(value, int | float) else (1, str(value))

    return by_setting


def table(found: list[Line]) -> Table:
    """Return the lines as a table, with the figures on the right."""
    heads = ["run", *found[0].settings, "rounds", *FIGURES.values()]
    texts = len(found[0].settings) + 1
    return Table(heads, [line.cells() for line in found], [line.plain() for line in found], texts)
