"""Grids of runs: `raysim compare` (methods × partitions × seeds) and `raysim sweep` (a named one, or any settings)."""

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from raysim import methods
from raysim.config import RunConfig, from_command_line, load_layers, resolve, take
from raysim.data import partitions
from raysim.engine.stopping import length_settings
from raysim.errors import InputError
from raysim.experiments.sweeps import SWEEPS, Axis, Sweep
from raysim.observe import papers
from raysim.settings import flag, nearest
from raysim.storage.remote import is_remote
from raysim.storage.run_directory import finished_run, results_folder

# Flags of these commands that take several values. All settings of a run are flags too.
LISTS = {
    "methods": "what to compare, e.g. fedavg hfmds hfmds+fedpa",
    "seeds": "of every row, e.g. 0 1 2; the table has their mean and standard deviation",
    "partitions": " or ".join(", ".join(partitions.short_forms()).rsplit(", ", 1)),
    "over": "sweep: settings and their values, e.g. hfmds.mu=0,0.5,1 lr=0.1,0.01; all combinations. search: settings "
    "and spaces, e.g. hfmds.mu=uniform:0,1 lr=loguniform:1e-4,1e-1",
}


Lists = dict[str, list[Any]]  # a flag of LISTS -> its values: words, or in Python methods as objects
Flags = dict[str, object]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a grid; those of one row differ in the seed only."""

    row: str
    config: RunConfig
    paper: tuple[papers.Figure, ...] = ()  # what the papers report for this row
    best_of: str | None = None  # the row that has the best of this one and others, where a paper tunes a setting

    @property
    def title(self) -> str:
        """Its name for people."""
        return f"{self.row}, seed {self.config.seed}"

    @property
    def folder(self) -> Path:
        """Its run directory."""
        assert self.config.out is not None  # the grid has set it
        return Path(self.config.out)

    @property
    def alone(self) -> RunConfig:
        """The configuration without what the grid has added to it."""
        return dataclasses.replace(self.config, out=None, resume=False)

    @property
    def finished(self) -> bool:
        """Whether the run directory is that of a whole run, as long as it is to be."""
        return bool(finished_run(self.config, self.folder))


@dataclass(frozen=True)
class Grid:
    """All runs of one command, and the folder that holds them and their table."""

    folder: Path
    runs: tuple[PlannedRun, ...]
    at_once: int | None  # runs at work together; None: as many as fit


def from_words(command: str, words: list[str]) -> Grid:
    """The grid that `compare` or `sweep` followed by these words asks for."""
    if command == "compare":
        return compare(*read(words))
    name = words[0] if words and not words[0].startswith("--") else None
    return sweep(*read(words[1:] if name else words), name)


def compare(lists: Lists, flags: Flags) -> Grid:
    """The grid of `--methods A B --seeds 0 1 --partitions classes:2 …`; other flags are settings of every run."""
    lists = dict(lists)
    if not (names := lists.pop("methods", [])):
        raise InputError("compare: say which with --methods, e.g. --methods fedavg fedprox hfmds")
    if "method" in flags or "over" in lists:
        raise InputError("compare takes --methods; use `raysim sweep --over …` for a grid of other settings")
    by_method: Axis = dict(map(_method, names))
    axes = (by_method, _partitions(lists.pop("partitions", [])))
    return _grid("compare", Sweep("", {}, axes), flags, lists.get("seeds"))


def sweep(lists: Lists, flags: Flags, name: str | None = None) -> Grid:
    """The grid of `NAME …` or `--over key=a,b …`; other flags are settings of every run."""
    if "methods" in lists or "partitions" in lists:
        raise InputError("sweep takes --over method=fedavg,hfmds partition=iid,classes; `raysim compare` takes lists")
    if name and "over" in lists:
        raise InputError(f"sweep: give the name of a sweep ('{name}') or --over, not both")
    if not name and not lists.get("over"):
        raise InputError("sweep: give a name (`raysim sweeps` lists them), or --over key=value,value …")
    if name and name not in SWEEPS:
        raise unknown_sweep(name)
    if name and "preset" in flags:
        raise InputError(f"sweep {name} has a preset of its own; change single settings, e.g. --rounds 20")
    if name:
        return _grid(f"sweep-{name}", SWEEPS[name], flags, lists.get("seeds"))
    return _grid("sweep", Sweep("", {}, tuple(map(_over, lists["over"]))), flags, lists.get("seeds"))


def unknown_sweep(name: str) -> InputError:
    """An error with the sweep that was meant, if it is nearly called that, or with those of the same paper."""
    siblings = [known for known in SWEEPS if known.partition("-")[0] == name.partition("-")[0]]
    otherwise = f"; there are {', '.join(siblings)}" if siblings else "; see `raysim sweeps`"
    return InputError(f"sweep: unknown sweep '{name}'{nearest(name, SWEEPS, otherwise, similar=0.85)}")


def of_points(name: str, points: Axis, flags: dict[str, object]) -> Grid:
    """The grid with a row for each of these points; other flags are settings of every run."""
    return _grid(name, Sweep("", {}, (points,)), flags, None)


# -- inside ------------------------------------------------------------------------------------------------------------


def read(words: list[str]) -> tuple[Lists, Flags]:
    """The flags that take several values, separated by blanks or commas, and the other flags."""
    lists: dict[str, list[str]] = {}
    rest: list[str] = []
    key = None
    for word in words:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            key = name if name in LISTS else None
            if key:
                lists.setdefault(key, [])
                word = value
        if key is None:
            rest.append(word)
        elif word:
            lists[key] += [word] if key == "over" else [item for item in word.split(",") if item]
    return lists, from_command_line(rest)


def _method(name: Any) -> tuple[str, dict[str, object]]:
    """A method as a point of an axis: by its name, or as parts given in Python."""
    if isinstance(name, str):
        return name, {"method": name}
    method, settings = methods.of_objects(name)
    return str(method), settings | {"method": method}


def _partitions(texts: list[str]) -> Axis:
    """Texts such as `classes:2` as an axis, whose points have the names of a table's rows."""
    return dict(map(partitions.parse, texts))


def _over(text: str) -> Axis:
    """A text such as `hfmds.mu=0,0.5` as an axis."""
    key, equals, values = text.partition("=")
    key = key.removeprefix("--")
    if not equals or not key or not (items := [item for item in values.split(",") if item]):
        raise InputError(f"--over: '{text}' is not written key=value,value, e.g. hfmds.mu=0,0.5,1")
    return {f"{key}={value}": {key.replace("-", "_"): value} for value in items}


def _grid(name: str, sweep: Sweep, flags: dict[str, object], seeds: list[str] | None) -> Grid:
    """Every combination of the axes with every seed; all settings are checked before anything starts."""
    command = name.partition("-")[0]
    flags = dict(flags)
    out, at_once = take(flags, "out"), _count(take(flags, "at_once"))
    if is_remote(out):
        raise InputError(
            f"{command}: --out {out}: many runs are kept in a folder of this machine, or a shared one; give one"
        )
    flags.pop("resume", None)  # every run of a grid is resumed
    if flags.pop("overwrite", "false") != "false":
        raise InputError(f"{command} goes on with what is there; to begin anew give another --out")
    axes = [axis for axis in sweep.axes if axis]
    varied = {key for axis in axes for settings in axis.values() for key in settings}
    if seeds and "seed" in varied | flags.keys():
        raise InputError(f"{command}: give the seeds once, with --seeds")
    if taken := sorted(varied & flags.keys()):
        raise InputError(f"{command}: {flag(taken[0])} is what varies here; leave it out")
    base = [(name if where == "command line" else where, values) for where, values in load_layers(sweep.base, {})]
    chosen: Sequence[object] = seeds or sweep.seeds
    if (not seeds and "seed" in varied | flags.keys()) or not chosen:
        chosen = [None]  # every run has the seed of its settings
    runs = []
    for points in itertools.product(*(axis.items() for axis in axes)):
        row = ", ".join(label for label, _ in points)
        tuned = ", ".join(sweep.best_of.get(label, label) for label, _ in points)
        settings = {key: value for _, point in points for key, value in point.items()}
        for seed in chosen:
            own = settings | ({} if seed is None else {"seed": seed})
            layers = [*base, *load_layers(_fitting(flags, own, axes), {}), ("command line", own)]
            best_of = tuned if tuned != row else None
            config = resolve(layers)
            runs.append(PlannedRun(row, config, _reported(sweep, row, config), best_of))
    folder = results_folder() / (str(out) if out else Path("runs") / f"{name}-{_digest(runs)}")
    return Grid(folder, tuple(_placed(command, folder, runs)), at_once)


def _reported(sweep: Sweep, row: str, config: RunConfig) -> tuple[papers.Figure, ...]:
    """What the papers report for a row: an ablation has its own figures, and none of a table."""
    if sweep.paper is None:
        return tuple(papers.find(config.settings()))
    return (papers.Figure("this ablation", sweep.paper[row]),) if row in sweep.paper else ()


def _fitting(flags: dict[str, object], own: dict[str, Any], axes: list[Axis]) -> dict[str, object]:
    """The flags without the settings of parts that only other methods of the grid have."""
    if "method" not in own:
        return flags
    parts = {
        method: set(methods.part_classes(methods.expand(method)[0]))
        for method in (cast(str, point["method"]) for axis in axes for point in axis.values() if "method" in point)
    }
    elsewhere = set().union(*parts.values()) - parts[own["method"]]
    return {key: value for key, value in flags.items() if key.rpartition(".")[0] not in elsewhere}


def _count(value: object) -> int | None:
    """The number of --at-once, if it is given."""
    if value is None:
        return None
    if not (str(value).isdigit() and int(str(value)) > 0):
        raise InputError(f"--at-once must be a whole number above 0, not '{value}'")
    return int(str(value))


def _digest(runs: list[PlannedRun]) -> str:
    """A name for these runs by which the same command finds their folder again."""
    content = json.dumps([run.config.identity() | length_settings(run.config) for run in runs], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:8]


def _placed(command: str, folder: Path, runs: list[PlannedRun]) -> Iterator[PlannedRun]:
    """The runs, each with a run directory of its own below the folder."""
    names = set()
    for run in runs:
        name = re.sub(r"[^\w.+=-]+", "-", run.title)
        if name in names:
            raise InputError(f"{command}: '{run.title}' is there twice")
        names.add(name)
        config = dataclasses.replace(run.config, out=str(folder / name), resume=True, overwrite=False)
        yield dataclasses.replace(run, config=config)
