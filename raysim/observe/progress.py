"""What a run says while it goes: plain lines, one per round, and a live bar where there is a terminal."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

RECENT = 20  # rounds the time left is estimated from


def duration(seconds: float) -> str:
    """42s, 3m07s, 2h05m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def round_line(line: dict, rounds: int, seconds_left: float) -> str:
    """One round for people."""
    words = [f"round {line['round']:>{len(str(rounds))}}/{rounds}"]
    if line["accuracy"] is not None:
        loss = "not finite" if line["loss"] is None else f"{line['loss']:.4f}"
        words += [f"accuracy {100 * line['accuracy']:6.2f} %", f"loss {loss}"]
    if line["train_loss"] is not None:
        words += [f"train loss {line['train_loss']:.4f}"]
    words += [f"{name} {value:.4g}" for name, value in line["terms"].items()]
    words += [f"clients {line['clients']}", f"{line['seconds']:.2f} s", f"{duration(seconds_left)} left"]
    if line.get("skipped"):
        words.append(f"{line['skipped']} clients skipped")
    if line["failures"]:
        words.append(f"{line['failures']} failures")
    return "  ".join(words)


class Reporter:
    """Prints to the terminal or the job log."""

    def __init__(self, console: Console | None = None):
        self.console = console or Console()
        self.bar: Progress | None = None

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def start(self, rounds: int) -> None:
        self.rounds, self.recent = rounds, []
        if self.console.is_terminal:
            columns = (TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.bar.start()
            self.task = self.bar.add_task("rounds", total=rounds)

    def round(self, line: dict) -> None:
        self.recent = [*self.recent, line["seconds"]][-RECENT:]
        left = (self.rounds - line["round"]) * sum(self.recent) / len(self.recent)
        self.say(round_line(line, self.rounds, left))
        self.reached(line["round"])

    def reached(self, rounds: int) -> None:
        """Move the bar."""
        if self.bar:
            self.bar.update(self.task, completed=rounds)

    def stop(self) -> None:
        if self.bar:
            self.bar.stop()
            self.bar = None


