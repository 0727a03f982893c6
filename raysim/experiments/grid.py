"""Grids of runs: `raysim compare` (methods × partitions × seeds) and `raysim sweep` (a named one, or any settings)."""

import dataclasses
import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from raysim import methods, papers
from raysim.config import RunConfig, from_command_line, load_layers, resolve, take
from raysim.config.addresses import is_remote, parsed
from raysim.data import partitions
from raysim.engine.stopping import length_settings
from raysim.errors import InputError
from raysim.papers import Axis, Settings, Sweep
from raysim.settings import flag, nearest
from raysim.storage.run_directory import finished_run, results_folder

# Flags of these commands that take several values. All settings of a run are flags too.
LISTS = {
    "methods": "what to compare, e.g. fedavg hfmds hfmds+fedpa",
    "seeds": "of every row, e.g. 0 1 2; the table has their mean and standard deviation",
    "partitions": " or ".join(", ".join(partitions.short_forms()).rsplit(", ", 1)),
    "over": "sweep: settings and their values, e.g. hfmds.mu=0,0.5,1 lr=0.1,0.01; all combinations. search: settings "
    "and spaces, e.g. hfmds.mu=uniform:0,1 lr=loguniform:1e-4,1e-1",
}


Lists = dict[str, list[Any]]  # a flag of LISTS -> its values: words, or in Python objects
Flags = dict[str, object]
Point = tuple[str, Settings]  # its name in the table, which others of its axis may have, and its settings

LONGEST_FOLDER = 150  # bytes of a run directory's name


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
    axes = [list(map(_method, names)), list(map(partitions.parse, lists.pop("partitions", [])))]
    return _grid("compare", Sweep("", {}, ()), axes, flags, lists.get("seeds"))


def sweep(lists: Lists, flags: Flags, name: str | None = None) -> Grid:
    """The grid of `NAME …` or `--over key=a,b …`; other flags are settings of every run."""
    if "methods" in lists or "partitions" in lists:
        raise InputError("sweep takes --over method=fedavg,hfmds partition=iid,classes; `raysim compare` takes lists")
    if name and "over" in lists:
        raise InputError(f"sweep: give the name of a sweep ('{name}') or --over, not both")
    if not name and not lists.get("over"):
        raise InputError("sweep: give a name (`raysim sweeps` lists them), or --over key=value,value …")
    if name and name not in papers.sweeps():
        raise unknown_sweep(name)
    if name and "preset" in flags:
        raise InputError(f"sweep {name} has a preset of its own; change single settings, e.g. --rounds 20")
    if name:
        found = papers.sweeps()[name]
        return _grid(f"sweep-{name}", found, _points(found.axes), flags, lists.get("seeds"))
    axes = list(map(_over, lists["over"]))
    for one, other in itertools.combinations(axes, 2):
        if twice := sorted(_varied([one]) & _varied([other])):
            raise InputError(f"sweep: {flag(twice[0])} is there twice after --over; join its values by commas")
    return _grid("sweep", Sweep("", {}, ()), axes, flags, lists.get("seeds"))


def unknown_sweep(name: str) -> InputError:
    """An error with the sweep that was meant, if it is nearly called that, or with those of the same paper."""
    siblings = [known for known in papers.sweeps() if known.partition("-")[0] == name.partition("-")[0]]
    otherwise = f"; there are {', '.join(siblings)}" if siblings else "; see `raysim sweeps`"
    return InputError(f"sweep: unknown sweep '{name}'{nearest(name, papers.sweeps(), otherwise, similar=0.85)}")


def of_points(name: str, points: Axis, flags: Flags) -> Grid:
    """The grid with a row for each of these points; other flags are settings of every run."""
    return _grid(name, Sweep("", {}, ()), _points([points]), flags, None)


def digest(runs: Sequence[PlannedRun], *more: str) -> str:
    """A name for these runs by which the same command finds their folder again."""
    settings = [run.config.identity() | length_settings(run.config) for run in runs]
    return _short_digest(json.dumps([*more, *settings], sort_keys=True))


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


def _method(name: Any) -> Point:
    """A method as a point of an axis: by its name, or as parts given in Python."""
    if isinstance(name, str):
        return name, {"method": name}
    method, settings = methods.of_objects(name)
    return str(method), settings | {"method": method}


def _over(given: str | tuple[str, list[Settings]]) -> list[Point]:
    """A text such as `hfmds.mu=0,0.5` as an axis, or a setting and what each of its values means, given in Python."""
    if isinstance(given, tuple):
        key, values = given
        if not values:
            raise InputError(f"sweep: {flag(key)} has no value to vary over; give a list of them")
        return [(", ".join(_assigned(k, v) for k, v in _of_key(key, each).items()), each) for each in values]
    key, equals, text = given.partition("=")
    key = key.removeprefix("--")
    if not equals or not key or not (items := [item for item in text.split(",") if item]):
        raise InputError(f"--over: '{given}' is not written key=value,value, e.g. hfmds.mu=0,0.5,1")
    return [(f"{key}={value}", {key.replace("-", "_"): value}) for value in items]


def _of_key(key: str, settings: Settings) -> Settings:
    """The setting of this key alone, where it is there: a method given in Python brings its parts' settings along."""
    return {key: settings[key]} if key in settings else settings


def _assigned(key: str, value: object) -> str:
    """A setting and its value as they stand in the name of a row."""
    return f"{key}={'none' if value is None else str(value).lower() if isinstance(value, bool) else value}"


def _points(axes: Iterable[Axis]) -> list[list[Point]]:
    return [list(axis.items()) for axis in axes]


def _varied(axes: Iterable[list[Point]]) -> set[str]:
    """The settings that these axes give."""
    return {key for axis in axes for _, settings in axis for key in settings}


def _grid(
    name: str, sweep: Sweep, axes: list[list[Point]], flags: dict[str, object], seeds: list[str] | None
) -> Grid:  # fmt: skip
    """Every combination of the axes with every seed; all settings are checked before anything starts."""
    command = name.partition("-")[0]
    flags = dict(flags)
    out, at_once = take(flags, "out"), _count(take(flags, "at_once"))
    if is_remote(out):
        parsed(f"{command}: --out", str(out))
        raise InputError(
            f"{command}: --out {out}: many runs are kept in a folder of this machine, or a shared one; give one"
        )
    flags.pop("resume", None)  # every run of a grid is resumed
    if flags.pop("overwrite", "false") != "false":
        raise InputError(f"{command} goes on with what is there; to begin anew give another --out")
    axes = [axis for axis in axes if axis]
    varied = _varied(axes)
    if seeds and "seed" in varied | flags.keys():
        raise InputError(f"{command}: give the seeds once, with --seeds")
    if taken := sorted(varied & flags.keys()):
        raise InputError(f"{command}: {flag(taken[0])} is what varies here; leave it out")
    base = [(name if where == "command line" else where, values) for where, values in load_layers(sweep.base, {})]
    chosen: Sequence[object] = seeds or sweep.seeds
    if (not seeds and "seed" in varied | flags.keys()) or not chosen:
        chosen = [None]  # every run has the seed of its settings

    def configured(points: tuple[Point, ...], seed: object) -> RunConfig:
        own = {key: value for _, point in points for key, value in point.items()}
        own |= {} if seed is None else {"seed": seed}
        return resolve([*base, *load_layers(_fitting(flags, own, axes), {}), ("command line", own)])

    named = _told_apart(axes, lambda points: configured(points, chosen[0]))
    runs = []
    for points, labels in zip(itertools.product(*axes), itertools.product(*named), strict=True):
        row = ", ".join(labels)
        tuned = ", ".join(sweep.best_of.get(label, label) for label in labels)
        for seed in chosen:
            config = configured(points, seed)
            runs.append(PlannedRun(row, config, _reported(sweep, row, config), tuned if tuned != row else None))
    _check_different(command, runs)
    folder = results_folder() / (str(out) if out else Path("runs") / f"{name}-{digest(runs)}")
    return Grid(folder, tuple(_placed(folder, runs)), at_once)


def _told_apart(axes: list[list[Point]], configured: Callable[[tuple[Point, ...]], RunConfig]) -> list[list[str]]:
    """The names of the axes' points; to points of one name the settings are added in which they differ."""
    named = []
    for i, axis in enumerate(axes):
        labels = [label for label, _ in axis]
        for label in [label for label, count in Counter(labels).items() if count > 1]:
            alike = [j for j, each in enumerate(labels) if each == label]
            beside = [axis[0] for axis in axes]  # what the other axes give does not matter
            settings = [configured((*beside[:i], axis[j], *beside[i + 1 :])).settings() for j in alike]
            keys = dict.fromkeys(key for each in settings for key in each)
            differing = [key for key in keys if len({json.dumps(each.get(key)) for each in settings}) > 1]
            for j, each in zip(alike, settings, strict=True):
                details = [_assigned(_short(key, each["method"]), each[key]) for key in differing if key in each]
                labels[j] = " ".join([label, *details])
        named.append(labels)
    return named


def _short(key: str, method: Any) -> str:
    """A setting's key without the part's name where that is the whole method's."""
    part, _, name = key.rpartition(".")
    return name if part == method.rpartition(".")[2] else key


def _check_different(command: str, runs: list[PlannedRun]) -> None:
    """Raise an InputError if two runs have the same settings: they would be one run, counted twice."""
    titles, by_settings = set[str](), dict[str, str]()
    for run in runs:
        if run.title in titles:
            raise InputError(
                f"{command}: '{run.title}' is there twice; leave one out, or let a setting or a name differ"
            )
        settings = json.dumps(run.config.settings(), sort_keys=True)
        if same := by_settings.get(settings):
            raise InputError(f"{command}: '{same}' and '{run.title}' have the same settings; leave one out")
        titles.add(run.title)
        by_settings[settings] = run.title


def _reported(sweep: Sweep, row: str, config: RunConfig) -> tuple[papers.Figure, ...]:
    """What the papers report for a row: an ablation has its own figures, and none of a table."""
    if sweep.paper is None:
        return tuple(papers.find(config.settings()))
    return (papers.Figure("this ablation", sweep.paper[row]),) if row in sweep.paper else ()


def _fitting(flags: dict[str, object], own: dict[str, Any], axes: list[list[Point]]) -> dict[str, object]:
    """The flags without the settings of parts that only other methods of the grid have."""
    if "method" not in own:
        return flags
    parts = {
        method: set(methods.part_classes(methods.expand(method)[0]))
        for method in (cast(str, point["method"]) for axis in axes for _, point in axis if "method" in point)
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


def _placed(folder: Path, runs: list[PlannedRun]) -> Iterator[PlannedRun]:
    """The runs, each with a run directory of its own below the folder."""
    names = set()
    for run in runs:
        name = re.sub(r"[^\w.+=-]+", "-", run.title)
        if name in names or len(name.encode()) > LONGEST_FOLDER:
            name = f"{name.encode()[:LONGEST_FOLDER].decode(errors='ignore')}-{_short_digest(run.title)}"
        names.add(name)
        config = dataclasses.replace(run.config, out=str(folder / name), resume=True, overwrite=False)
        yield dataclasses.replace(run, config=config)


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
