"""The public interface in Python (docs/python.md): the commands of the command line as functions.

Settings are keyword arguments with the names they have in a TOML file; a part's settings are a dict under its name.
Where a setting names something of the user's own (a model, data, a partition, a method, a callback) it may be the
object itself. Errors are exceptions of one line (raysim.RaysimError); Ctrl-C is a KeyboardInterrupt that ends the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from rich.console import Console

from raysim import methods as all_methods
from raysim import single_run
from raysim.config import CALL, RunConfig, load_layers, resolve
from raysim.data.own import name_of_data
from raysim.definitions import given as given_object
from raysim.definitions import name_of
from raysim.engine.ray_runner import cluster
from raysim.engine.ray_runner.plan import Plan
from raysim.experiments import grid, scheduler
from raysim.finished_run import Run, framed, open_run
from raysim.observe.progress import Reporter
from raysim.settings import Given

__all__ = ["Comparison", "Plan", "Run", "compare", "open_run", "plan", "resume", "run", "search", "sweep"]


def run(*, progress: bool = True, **settings: Any) -> Run:
    """Run a simulation, as `raysim run` does; with `progress=False` without printing anything.

    It starts a Ray on this machine that ends with the run, or uses the cluster that RAY_ADDRESS names; a Ray that this
    process is connected to is used and left as it was.

        result = raysim.run(method="fedprox", fedprox={"mu": 0.1}, clients=20, rounds=10)
        result.accuracy, result.model()
    """
    return _run(_config(settings), progress)


def resume(path: str | PathLike[str], *, progress: bool = True, **settings: Any) -> Run:
    """Go on with a run that was interrupted, as `raysim resume` does.

    It has its own settings; give those that say where and how to run it, and the objects that it was given.
    """
    return _run(single_run.to_resume(str(path), _plain(settings), CALL), progress)


def plan(**settings: Any) -> Plan:
    """The placement plan of a configuration on the cluster that a run would use, as `raysim plan` prints it."""
    config = _config(settings)
    dataset, dealt = single_run.prepare(config)
    with cluster.connected():
        return single_run.plan_for(config, dataset, dealt)


@dataclass(frozen=True)
class Comparison:
    """Many runs: each of them, their table (Markdown), and the folder they are in. A notebook shows its report."""

    path: Path
    runs: tuple[Run, ...]
    table: str
    best: Run | None = None  # of a search

    def _repr_html_(self) -> str:
        return framed(self.path / "report.html")


def compare(
    methods: Iterable[Any], *, seeds: Iterable[int] = (), partitions: Iterable[str] = (), progress: bool = True,
    **settings: Any,
) -> Comparison:  # fmt: skip
    """Methods × partitions × seeds on one cluster, as `raysim compare` runs them: `partitions=["classes:2", "iid"]`.

    The same call again goes on where it stopped.
    """
    lists = {"methods": list(methods), "partitions": list(partitions), "seeds": [str(seed) for seed in seeds]}
    return _many(grid.compare({key: values for key, values in lists.items() if values}, _plain(settings)), progress)


def sweep(
    name: str | None = None, *, over: Mapping[str, Iterable[Any]] | None = None, seeds: Iterable[int] = (),
    progress: bool = True, **settings: Any,
) -> Comparison:  # fmt: skip
    """A paper's ablation by name, or `over={"hfmds.mu": [0, 0.5], "lr": [0.1]}`, as `raysim sweep` runs them."""
    lists: grid.Lists = {"seeds": [str(seed) for seed in seeds]}
    keys = {key: key.removeprefix("--").replace("-", "_") for key in over or {}}
    lists["over"] = [(keys[key], [_plain({keys[key]: one}) for one in values]) for key, values in (over or {}).items()]
    return _many(grid.sweep({key: values for key, values in lists.items() if values}, _plain(settings), name), progress)


def search(
    over: Mapping[str, Any], *, trials: int = 10, sampler: str = "random", scheduler: str = "asha",
    grace: int | None = None, reduction: int | None = None, progress: bool = True, **settings: Any,
) -> Comparison:  # fmt: skip
    """Settings drawn as `raysim search` does: `over={"lr": "loguniform:1e-4,1e-1"}`, or distributions of Optuna.

    The same call again goes on where it stopped; `best` of the result is the best trial.
    """
    from raysim.experiments import search as searching  # imported here, since it needs Optuna

    own = {"trials": trials, "sampler": sampler, "scheduler": scheduler, "grace": grace, "reduction": reduction}
    flags = _plain(settings) | {key: value for key, value in own.items() if value is not None}
    done, best = searching.run_search(searching.Search(over, flags), _reporter(progress))
    return replace(_compared(done), best=_opened(best.folder, best.config))


# -- inside ------------------------------------------------------------------------------------------------------------

OBJECTS = {"method", "dataset", "partition", "model", "callback"}


def _config(settings: dict[str, Any]) -> RunConfig:
    return resolve(load_layers(_plain(settings), {}, CALL))


def _plain(settings: dict[str, Any]) -> dict[str, object]:
    """Keyword arguments as a layer of settings: a part's dict as keys with its prefix, objects under a name."""
    plain: dict[str, object] = {}
    for key, value in settings.items():
        if key == "method" and not isinstance(value, str):
            plain["method"], own = all_methods.of_objects(value)
            plain |= own
        elif key in OBJECTS - {"method"} and value is not None and not isinstance(value, str | PathLike):
            plain[key] = _named(key, value)
        elif isinstance(value, Mapping):
            plain |= {f"{key}.{inner}": each for inner, each in value.items()}
        else:
            plain[key] = str(value) if isinstance(value, PathLike) else value
    return plain


def _named(key: str, value: Any) -> Given:
    """An object under the name by which it is recorded."""
    if key == "callback":
        value = list(value) if isinstance(value, list | tuple) else [value]
        return Given(",".join(map(name_of, value)), value)
    if key == "dataset" and not callable(value):
        return Given(name_of_data(value), value)
    return given_object(value)


def _reporter(progress: bool) -> Reporter:
    # Plain lines in a notebook too: rich would make a piece of HTML of every one.
    return Reporter(Console(force_jupyter=False, quiet=not progress), brief=True)


def _run(config: RunConfig, progress: bool) -> Run:
    path, _ = single_run.run(config, _reporter(progress))
    return _opened(path, config)


def _opened(path: Path | str, config: RunConfig) -> Run:
    return open_run(path, model=config.model if isinstance(config.model, Given) else None)


def _many(planned: grid.Grid, progress: bool) -> Comparison:
    scheduler.run_grid(planned, _reporter(progress))
    return _compared(planned)


def _compared(planned: grid.Grid) -> Comparison:
    table = (planned.folder / "table.md").read_text(encoding="utf-8")
    return Comparison(planned.folder, tuple(_opened(each.folder, each.config) for each in planned.runs), table)
