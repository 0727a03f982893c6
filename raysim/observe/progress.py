"""Progress of a run for people: a line per round, and a live bar where there is a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from raysim.engine.callbacks import Callback
from raysim.engine.round_metrics import RoundMetrics
from raysim.privacy.figures import describe

if TYPE_CHECKING:
    from raysim.engine.simulation import Result

RECENT = 20  # rounds that the remaining time is estimated from


def duration(seconds: float) -> str:
    """Return a time span for people: 42s, 3m07s, 2h05m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def round_line(metrics: RoundMetrics, rounds: int, seconds_left: float) -> str:
    """Return a line about a round, out of so many."""
    words = [f"round {metrics.round:>{len(str(rounds))}}/{rounds}"]
    if metrics.accuracy is not None:
        loss = "not finite" if metrics.loss is None else f"{metrics.loss:.4f}"
        words += [f"accuracy {100 * metrics.accuracy:6.2f} %", f"loss {loss}"]
    if metrics.train_loss is not None:
        words += [f"train loss {metrics.train_loss:.4f}"]
    words += [f"{name} {value:.4g}" for name, value in metrics.terms.items()]
    words += [f"clients {metrics.clients}", f"{metrics.seconds:.2f} s", f"{duration(seconds_left)} left"]
    if metrics.skipped:
        words.append(f"{metrics.skipped} clients skipped")
    if metrics.failures:
        words.append(f"{metrics.failures} failures")
    return "  ".join(words)


def pass_line(part: str, round: int, passes: int, of: int, seconds: float) -> str:
    """Return a line about a part's pass over the clients before a round, out of so many."""
    left = duration((of - passes) * seconds)
    return f"{part}: pass {passes:>{len(str(of))}}/{of} before round {round}  {seconds:.2f} s  {left} left"


class Reporter(Callback):
    """A printer to the terminal or the job log; `brief` leaves out what its reader has just written."""

    def __init__(self, console: Console | None = None, brief: bool = False):
        self.console, self.brief = console or Console(), brief
        self.bar: Progress | None = None

    def say(self, text: str) -> None:
        """Print text as it is, above the bar if there is one."""
        self.console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def say_settings(self, settings: dict[str, Any]) -> None:
        """Print all settings, a line each."""
        if not self.brief:
            self.say("\n".join(f"  {key} = {value}" for key, value in settings.items() if value is not None))

    # -- the bar -----------------------------------------------------------------------------------------------------

    def start(self, rounds: int) -> None:
        """Show a bar of so many rounds, where there is a terminal."""
        self.rounds = rounds
        self.recent: list[float] = []  # seconds of the last rounds
        if self.console.is_terminal:
            columns = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.bar.start()
            self.task = self.bar.add_task("rounds", total=rounds)

    def reached(self, rounds: int) -> None:
        """Move the bar to so many finished rounds."""
        if self.bar:
            self.bar.update(self.task, completed=rounds)

    def stop(self) -> None:
        """Remove the bar."""
        if self.bar:
            self.bar.stop()
            self.bar = None

    # -- as a callback of a run --------------------------------------------------------------------------------------

    def on_start(self, settings: dict[str, Any], out: Path) -> None:
        self.out = out
        self.start(settings["rounds"])

    def on_round(self, metrics: RoundMetrics) -> None:
        earlier = [] if metrics.round == 2 else self.recent  # the first has what is done once, as training GANs
        self.recent = [*earlier, metrics.seconds][-RECENT:]
        left = (self.rounds - metrics.round) * sum(self.recent) / len(self.recent)
        self.say(round_line(metrics, self.rounds, left))
        self.reached(metrics.round)

    def on_event(self, kind: str, details: dict[str, Any]) -> None:
        if kind == "notice":
            self.say(f"note: {details['text']}")
        if kind == "checkpoint_refused":
            self.say(f"warning: {details['text']}")
        if kind == "exchanged":
            self.say(pass_line(**details))

    def on_result(self, result: Result) -> None:
        if result.privacy:
            self.say(f"privacy: {describe(result.privacy)}")
        if result.profiles:
            self.say(f"profile: {self.out / 'profile'}")

    def close(self) -> None:
        self.stop()
