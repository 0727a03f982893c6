"""Search: `raysim search --over lr=loguniform:1e-4,1e-1 --trials 20`; settings are drawn, worse trials ended early.

Every trial is a run of a grid, so the scheduler, the table and the report are those of `sweep`. `search.jsonl` in its
folder has every accuracy that was reported with the answer it got, in order: from it a search that was killed goes on.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raysim.config import take
from raysim.errors import InputError
from raysim.experiments import grid, scheduler, tune
from raysim.experiments.grid import Grid, PlannedRun
from raysim.experiments.sweeps import Axis
from raysim.observe.progress import Reporter
from raysim.rng import stream
from raysim.settings import flag
from raysim.storage.files import append_line, write_atomically
from raysim.storage.formats import read_json_lines, read_summary

FLAGS = {
    "trials": "number of trials; more of them can be added later",
    "scheduler": "asha: end trials early that are worse than others after as many rounds; none: all rounds for all",
    "grace": "asha: rounds that every trial may do",
    "reduction": "asha: after grace, grace·reduction, grace·reduction² … rounds one of so many trials goes on",
}  # beside those of `sweep`
MOST_TRIALS = 10_000
LINE = {"trial": str, "round": int, "accuracy": float, "stop": str}  # of search.jsonl


@dataclass(frozen=True)
class Search:
    """A grid of drawn trials, and what ends them early."""

    grid: Grid
    asha: tuple[int, int] | None  # grace and reduction factor


def from_lists(lists: Mapping[str, list[str]], flags: Mapping[str, object]) -> Search:
    """The search of `--over key=KIND:VALUES … --trials N`; other flags are settings of every trial."""
    if not lists.get("over"):
        raise InputError("search: say what to draw with --over, e.g. --over lr=loguniform:1e-4,1e-1")
    if other := sorted(lists.keys() - {"over"}):
        raise InputError(f"search takes no {flag(other[0])}; its trials differ in what --over draws")
    return plan_search(dict(_space(text) for text in lists["over"]), flags)


def plan_search(spaces: Mapping[str, Any], flags: Mapping[str, object]) -> Search:
    """A search over these spaces, of which each is a text as on the command line or one of Tune's own."""
    spaces = {key: tune.space(space, key) for key, space in spaces.items()}
    flags = dict(flags)
    trials = _whole("trials", take(flags, "trials"), 10, 1, MOST_TRIALS)
    kind = take(flags, "scheduler") or "asha"
    if kind not in ("asha", "none"):
        raise InputError(f"search: --scheduler must be asha or none, not '{kind}'")
    grace, reduction = take(flags, "grace"), take(flags, "reduction")
    planned = grid.of_points("search", _drawn(spaces, trials, flags), flags)
    config = planned.runs[0].config
    if kind == "none":
        if grace or reduction:
            raise InputError("search: --grace and --reduction belong to --scheduler asha; leave them out")
        return Search(planned, None)
    if not config.eval_every:
        raise InputError("search: --scheduler asha compares accuracies on the way; give --eval-every 1")
    first = _whole("grace", grace, max(1, config.rounds // 10), 1, config.rounds)
    return Search(planned, (first, _whole("reduction", reduction, 3, 2, 100)))


def run_search(search: Search, reporter: Reporter) -> PlannedRun | None:
    """Run all trials, write their table and report, and say which is best; returns that one."""
    judge = Judge(search) if search.asha else None
    try:
        scheduler.run_grid(search.grid, reporter, judge)
    finally:
        best = best_of(search.grid)
        if best:
            summary = read_summary(best.folder)
            command = shlex.join(["raysim", "run", *scheduler.flags(best.alone)])
            reporter.say(f"best: {best.row}: {100 * summary['final_accuracy']:.2f} %; by itself: {command}")
    return best


def best_of(planned: Grid) -> PlannedRun | None:
    """The finished trial with the highest accuracy, among those with most rounds; the first of equal ones."""
    done = [(run, read_summary(run.folder)) for run in planned.runs if run.finished]
    ranked = sorted(done, key=lambda pair: (-pair[1]["rounds"], -pair[1]["final_accuracy"]))
    return ranked[0][0] if ranked else None


class Judge:
    """Answers the trials' reports by ASHA, and keeps reports and answers in search.jsonl."""

    def __init__(self, search: Search):
        assert search.asha
        config = search.grid.runs[0].config
        self.asha = tune.Asha(config.rounds, *search.asha)
        self.path = search.grid.folder / "search.jsonl"
        self.ended: dict[str, str] = {}  # trial -> why
        if self.path.exists():  # a kill may have cut its last line
            content = self.path.read_bytes()
            write_atomically(self.path, content[: content.rfind(b"\n") + 1])
        for line in read_json_lines(self.path, LINE):
            self.asha.ends(line["trial"], line["round"], line["accuracy"])
            self.ended |= {line["trial"]: line["stop"]} if line["stop"] else {}

    def __call__(self, run: PlannedRun, t: int, accuracy: float) -> str:
        """Why the trial ends after this round; empty if it goes on. A trial that was to end before ends at once."""
        trial = run.folder.name
        if trial in self.ended:  # the search was killed before the trial had taken note
            return self.ended[trial]
        ends = t < run.config.rounds and self.asha.ends(trial, t, accuracy)
        why = f"ASHA ended it: other trials were better after {t} rounds" if ends else ""
        append_line(self.path, {"trial": trial, "round": t, "accuracy": accuracy, "stop": why})
        self.ended |= {trial: why} if why else {}
        return why


# -- inside ------------------------------------------------------------------------------------------------------------


def _space(text: str) -> tuple[str, str]:
    key, equals, written = text.partition("=")
    if not equals or not key:
        raise InputError(f"--over: '{text}' is not written key=KIND:VALUES, e.g. lr=loguniform:1e-4,1e-1")
    return key.removeprefix("--").replace("-", "_"), written


def _drawn(spaces: Mapping[str, Any], trials: int, flags: Mapping[str, object]) -> Axis:
    """So many different points, or as many as there are; the first ones are the same whatever their number."""
    draw = stream(_whole("seed", flags.get("seed"), 0, 0, 2**63 - 1), "search")
    points: Axis = {}
    for _ in range(100 * trials):
        point = {key: tune.draw(domain, draw) for key, domain in spaces.items()}
        points.setdefault(", ".join(f"{key}={value}" for key, value in point.items()), point)
        if len(points) == trials:
            break
    return points


def _whole(key: str, given: object, default: int, least: int, most: int) -> int:
    if given is None:
        return default
    text = str(given)
    if not text.isdigit() or not least <= int(text) <= most:
        raise InputError(f"search: {flag(key)} must be a whole number from {least} to {most}, not '{text}'")
    return int(text)
