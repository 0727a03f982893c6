"""Search: `raysim search --over lr=loguniform:1e-4,1e-1 --trials 20`.

Optuna draws the settings and ends worse trials early. Every trial is a run of a grid, so the scheduler, the table and
the report are those of `sweep`. `search.journal` in its folder is Optuna's own storage: from it a search that was
killed goes on.
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from raysim.config import take
from raysim.errors import InputError
from raysim.experiments import grid, scheduler
from raysim.experiments.grid import Flags, Grid, Lists, PlannedRun
from raysim.observe.progress import Reporter
from raysim.papers import Axis
from raysim.rng import stream
from raysim.settings import convert, flag, setting, setting_fields
from raysim.storage.files import append_line, write_atomically
from raysim.storage.formats import DamagedFile, read_json_lines, read_summary

try:
    import optuna
except ImportError:
    raise InputError("search needs the package optuna; install it: pip install optuna") from None

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial, TrialState

optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would print a line for every study

KINDS: dict[str, Any] = {
    "uniform": FloatDistribution, "loguniform": partial(FloatDistribution, log=True),
    "int": IntDistribution, "logint": partial(IntDistribution, log=True),
}  # fmt: skip
WRITTEN = "uniform:0,1, loguniform:1e-4,1e-1, int:1,10, logint:1,1000 (A below B, above 0 for log), choice:sgd,adam"
SAMPLERS = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}
DIGITS = 4  # that a drawn number keeps, so that what is printed is what is run
TRIES = 100  # draws in a row without a new trial, after which there is taken to be none left


@dataclass(frozen=True)
class Options:
    """What `search` takes beside the flags of `sweep`."""

    trials: int = setting(10, "number of trials; more of them can be added later", minimum=1, maximum=10_000)
    sampler: Literal["random", "tpe"] = setting(
        "random", "random: draws depend on --seed alone; tpe: Optuna's, which learns from the trials before"
    )
    scheduler: Literal["asha", "none"] = setting(
        "asha", "asha: Optuna's SuccessiveHalvingPruner ends worse trials early; none: all rounds for all"
    )
    grace: int | None = setting(None, "asha: rounds that every trial may do, by default a tenth of --rounds", minimum=1)
    reduction: int = setting(
        3, "asha: after grace, grace·reduction, grace·reduction² … rounds one of so many trials goes on",
        minimum=2, maximum=100,
    )  # fmt: skip


def from_lists(lists: Lists, flags: Flags) -> "Search":
    """Plan the search of `--over key=KIND:VALUES … --trials N`; other flags are settings of every trial."""
    if not lists.get("over"):
        raise InputError("search: say what to draw with --over, e.g. --over lr=loguniform:1e-4,1e-1")
    if other := sorted(lists.keys() - {"over"}):
        raise InputError(f"search takes no {flag(other[0])}; its trials differ in what --over draws")
    return Search(dict(_over(text) for text in lists["over"]), flags)


def run_search(search: "Search", reporter: Reporter) -> tuple[Grid, PlannedRun]:
    """Run all trials, write their table and report, and say which is best; returns the trials, and that one."""
    done = scheduler.run_grid(search.grid, reporter, search)
    best = search.best()
    command = shlex.join(["raysim", "run", *scheduler.flags(best.alone)])
    reporter.say(f"best: {best.row}: {100 * _accuracy(best):.2f} %; by itself: {command}")
    return done, best


class Search(scheduler.Trials):
    """A study of Optuna whose trials are runs of a grid."""

    def __init__(self, over: Mapping[str, str | BaseDistribution], flags: Flags):
        """Plan it; a space is a text as on the command line, or one of Optuna's distributions."""
        self.spaces = {key: space(given, key) for key, given in over.items()}
        self.flags = dict(flags)
        given = {key: text for key in setting_fields(Options) if (text := take(self.flags, key)) is not None}
        options = Options(**{k: convert(setting_fields(Options)[k], text, "search", k) for k, text in given.items()})
        ends = grid.of_points("search", _ends(self.spaces), self.flags)
        config = ends.runs[0].config
        grace = options.grace or max(1, config.rounds // 10)
        if options.scheduler == "asha":
            if not config.eval_every:
                raise InputError("search: --scheduler asha compares accuracies on the way; give --eval-every 1")
            if grace > config.rounds:
                raise InputError(f"search: --grace {grace} is more than --rounds {config.rounds}; give a smaller one")
            self.pruner: Any = optuna.pruners.SuccessiveHalvingPruner(grace, options.reduction)
        else:
            if given.keys() & {"grace", "reduction"}:
                raise InputError("search: --grace and --reduction belong to --scheduler asha; leave them out")
            self.pruner = optuna.pruners.NopPruner()
        self.sampler, self.seed, self.number = SAMPLERS[options.sampler], config.seed, options.trials
        self.name = grid.digest(ends.runs, *(f"{key}: {each}" for key, each in self.spaces.items()))
        folder = ends.folder if self.flags.get("out") else ends.folder.with_name(f"search-{self.name}")
        self.examples, self.grid = ends.runs, Grid(folder, (), ends.at_once)
        self.trials: dict[PlannedRun, optuna.Trial] = {}

    def open(self) -> list[PlannedRun]:
        """Open the study, and return the trials that were drawn before."""
        path = self.grid.folder / "search.journal"
        try:
            self.study = optuna.create_study(
                storage=optuna.storages.JournalStorage(Journal(path)), study_name=self.name, load_if_exists=True,
                direction="maximize", pruner=self.pruner,
            )  # fmt: skip
            for frozen in self.study.get_trials(deepcopy=False):
                if self._drawn(frozen) and frozen.state != TrialState.FAIL:
                    run = self._planned(frozen)
                    self.trials[run] = optuna.Trial(self.study, frozen._trial_id)
                    if run.finished:
                        self.finished(run)
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise DamagedFile(path, f"Optuna cannot read it ({error!r})") from error
        return [*self.trials]

    def draw(self) -> PlannedRun | None:
        """Draw the next trial, unless there is no point that was not drawn before."""
        for _ in range(TRIES):
            # With a sampler of its own, a draw is the same after a kill. What a kill has cut is drawn again.
            before = sum(map(self._drawn, self.study.get_trials(deepcopy=False)))
            self.study.sampler = self.sampler(seed=int(stream(self.seed, "search", before).integers(2**32)))
            trial = self.study.ask(self.spaces)
            try:
                run = self._planned(self._frozen(trial))
            except InputError:
                self.study.tell(trial, state=TrialState.FAIL)
                raise
            if run not in self.trials:
                self.trials[run] = trial
                return run
            self.study.tell(trial, state=TrialState.FAIL)
        self.number = len(self.trials)
        return None

    def judge(self, run: PlannedRun, t: int, accuracy: float) -> str:
        """Say why the trial ends after this round; a trial that was to end before it was killed ends at once."""
        trial = self.trials[run]
        before = self._frozen(trial)
        if before.state == TrialState.RUNNING and t not in before.intermediate_values:
            trial.report(accuracy, t)
            if t < run.config.rounds and trial.should_prune():
                self.study.tell(trial, state=TrialState.PRUNED)
        now = self._frozen(trial)
        return f"ASHA ended it: other trials were better after {now.last_step} rounds" if _pruned(now) else ""

    def finished(self, run: PlannedRun) -> None:
        """Give Optuna the trial's result, if it was not ended early."""
        self.study.tell(self.trials[run].number, _accuracy(run), skip_if_finished=True)

    def best(self) -> PlannedRun:
        """Return the most accurate of the trials that were not ended early; the first of equal ones."""
        return max(self.trials, key=lambda run: (not _pruned(self._frozen(self.trials[run])), _accuracy(run)))

    def _drawn(self, trial: FrozenTrial) -> bool:
        """Whether the trial has all its values; a kill may have come between two of them."""
        return trial.params.keys() == self.spaces.keys()

    def _frozen(self, trial: optuna.Trial) -> FrozenTrial:
        return self.study.get_trials(deepcopy=False)[trial.number]

    def _planned(self, trial: FrozenTrial) -> PlannedRun:
        drawn = {key: trial.params[key] for key in self.spaces}
        point = {key: float(f"{v:.{DIGITS}g}") if isinstance(v, float) else v for key, v in drawn.items()}
        row = ", ".join(f"{key}={value}" for key, value in point.items())
        return grid.of_points("search", {row: point}, self.flags | {"out": str(self.grid.folder)}).runs[0]


class Journal(BaseJournalBackend):
    """Optuna's journal in a file, one JSON object a line; the folder's lock stands for one per line."""

    def __init__(self, path: Path):
        self.path = path
        if path.exists():  # a kill may have cut its last line
            content = path.read_bytes()
            write_atomically(path, content[: content.rfind(b"\n") + 1])
        self.lines: list[dict[str, Any]] = read_json_lines(path, dict)

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """Return the lines from this one on."""
        return self.lines[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines."""
        for line in logs:
            append_line(self.path, line)
            self.lines.append(line)


def space(given: str | BaseDistribution, key: str) -> BaseDistribution:
    """Return the space that a text such as `loguniform:1e-4,1e-1` describes; whole numbers include both ends."""
    if isinstance(given, BaseDistribution):
        return given
    kind, _, values = str(given).partition(":")
    items = [item for item in values.split(",") if item]
    try:
        if kind == "choice":
            return CategoricalDistribution(items)
        low, high = map(int if "int" in kind else float, items)
        return KINDS[kind](low, high)
    except (KeyError, ValueError):
        wrong = f"--over: '{key}={given}' is no space to draw from; write {key}=KIND:VALUES, as in {WRITTEN}"
        raise InputError(wrong) from None


# -- inside ------------------------------------------------------------------------------------------------------------


def _over(text: str) -> tuple[str, str]:
    """Split `key=KIND:VALUES`."""
    key, equals, written = text.partition("=")
    if not equals or not key:
        raise InputError(f"--over: '{text}' is not written key=KIND:VALUES, e.g. lr=loguniform:1e-4,1e-1")
    return key.removeprefix("--").replace("-", "_"), written


def _ends(spaces: Mapping[str, Any]) -> Axis:
    """Return points at which each setting has its lowest, its highest or each of its values, to check them."""
    ends = {key: getattr(each, "choices", None) or (each.low, each.high) for key, each in spaces.items()}
    first = {key: values[0] for key, values in ends.items()}
    others = [(key, value) for key, values in ends.items() for value in values if value != first[key]]
    return {"first values": first} | {f"{key}={value}": first | {key: value} for key, value in others}


def _pruned(trial: FrozenTrial) -> bool:
    return trial.state == TrialState.PRUNED


def _accuracy(run: PlannedRun) -> float:
    return read_summary(run.folder)["final_accuracy"]
