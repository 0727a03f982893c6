"""The command line: words to calls. `raysim COMMAND …`, `python -m raysim COMMAND …`, and `job` for files in jobs/.

What a command needs is imported when it runs: `raysim --help` loads neither torch nor ray.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from raysim import methods
from raysim.config import (
    PRESETS,
    RunConfig,
    from_command_line,
    from_record,
    help_lines,
    load_layers,
    markdown_table,
    resolve,
    take,
)
from raysim.engine.ray_runner.environment import secure_local_ray
from raysim.engine.signals import INTERRUPTED, interruptible, leave
from raysim.errors import InputError, RaysimError
from raysim.observe.progress import Reporter, duration
from raysim.settings import flag, nearest

HELP = {"-h", "--help"}

Words = list[str]


def main(arguments: Words | None = None) -> int:
    """`raysim COMMAND …`; returns the exit code."""
    return _guarded(_command, sys.argv[1:] if arguments is None else arguments)


def console() -> NoReturn:
    """The installed `raysim` command."""
    leave(main())


def job(beside: str | None = None, **defaults: object) -> NoReturn:
    """A job file's whole content: `run` with other defaults; takes the same flags, exits with the same codes.

    `beside`: run this baseline with the same settings afterwards, and print both accuracies. `preset` among the
    defaults starts from a paper's settings.
    """
    leave(_guarded(lambda words: _run(words, defaults, beside), sys.argv[1:]))


def _guarded(function: Callable[[Words], None], words: Words) -> int:
    """Errors meant for people become one line on stderr and their exit code; an interrupt becomes 130."""
    error_console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    secure_local_ray()
    try:
        with interruptible():
            function(words)
    except RaysimError as error:
        if trace := getattr(error, "traceback", ""):
            error_console.print(trace.rstrip())
        error_console.print(f"raysim: {error}")
        return error.exit_code
    except KeyboardInterrupt as interrupt:
        error_console.print(str(interrupt) or INTERRUPTED)
        return 130
    return 0


def _command(words: Words) -> None:
    command, rest = (words[0], words[1:]) if words else ("--help", [])
    if command in HELP | {"help"}:
        lines = [f"  {name:10} {about}" for name, (about, _) in COMMANDS.items()]
        last = "raysim run --help lists the settings"
        Reporter().say("\n".join(["usage: raysim COMMAND [settings]", "", *lines, "", last]))
    elif command in COMMANDS:
        _, function = COMMANDS[command]
        function(rest)
    else:
        raise InputError(f"unknown command '{command}'{nearest(command, COMMANDS, '; see `raysim --help`')}")


# -- one run -----------------------------------------------------------------------------------------------------------


def _run(words: Words, defaults: dict[str, object] | None = None, beside: str | None = None) -> None:
    """`run [settings]`: one run, and its baseline if a job asks for one."""
    if (config := _config(words, defaults)) is None:
        return
    out, summary = _run_one(config)
    if beside and beside != config.method:
        parts = tuple(part for part in config.parts if part.name in beside.split("+"))
        alone = dataclasses.replace(config, method=beside, parts=parts, out=f"{out}-{beside}")
        _, baseline = _run_one(alone)
        Reporter().say(
            f"side by side after {config.rounds} rounds, same seed and clients: {config.method} "
            f"{100 * summary['final_accuracy']:.2f} %, {beside} {100 * baseline['final_accuracy']:.2f} %\n"
            f"report: {out / 'report.html'}"
        )


def _resume(words: Words) -> None:
    """`resume RUN_DIR [settings]`: its own settings, and those that say where and how to run it."""
    path = Path(words[0]) if words else Path()
    if not words or not (path / "config.json").exists():
        raise InputError(f"resume: '{' '.join(words[:1])}' is not a run directory; give the path a run printed")
    from raysim.storage.formats import read_config

    source = str(path / "config.json")
    recorded = from_record(read_config(path)["settings"], source) | {"overwrite": False}
    here = {"resume": True, "out": str(path.resolve())}
    _run_one(resolve([(source, recorded), ("command line", from_command_line(words[1:]) | here)]))


def _plan(words: Words) -> None:
    """`plan [settings]`: print the placement plan and stop."""
    if (config := _config(words)) is None:
        return
    from raysim.engine.ray_runner import cluster
    from raysim.single_run import plan_for, prepare

    dataset, dealt = prepare(config)
    with cluster.connected():
        Reporter().say(plan_for(config, dataset, dealt).describe())


def _config(words: Words, defaults: dict[str, object] | None = None) -> RunConfig | None:
    """The configuration that the words ask for; None if they ask for help."""
    if HELP & set(words):
        Reporter().say("\n".join(_settings_help()))
        return None
    return resolve(load_layers(from_command_line(words), defaults or {}))


def _settings_help() -> list[str]:
    lines = ["settings (as --flags, or lines of a TOML file given with --config):", *help_lines(RunConfig)]
    lines += [f"  {'--preset':28} start from a paper's settings; `raysim presets`"]
    lines += [f"  {'--config':28} a TOML file of settings"]
    for name in _parts():
        lines += ["", methods.describe(name), *help_lines(methods.part_class(name), f"{name}.")]
    return lines


def _run_one(config: RunConfig) -> tuple[Path, dict[str, Any]]:
    from raysim.single_run import run

    reporter = Reporter()
    out, summary = run(config, reporter)
    reporter.say(
        f"done: accuracy {100 * summary['final_accuracy']:.2f} % (best {100 * summary['best_accuracy']:.2f} %) "
        f"after {summary['rounds']} rounds in {duration(summary['seconds'])}\n"
        f"model sha256 {summary['model_sha256']}\nreport: {out / 'report.html'}"
    )
    return out, summary


# -- many runs ---------------------------------------------------------------------------------------------------------


def _compare(words: Words) -> None:
    """`compare --methods A B …`: methods × seeds × partitions, and their table."""
    from raysim.experiments import grid

    _many("compare", grid.compare, words)


def _sweep(words: Words) -> None:
    """`sweep NAME`, or `sweep --over key=value,value …`: an ablation and its table."""
    from raysim.experiments import grid

    _many("sweep", grid.sweep, words)


def _many(command: str, parse: Callable[[Words], Any], words: Words) -> None:
    """All runs of a grid, their table and their report."""
    from raysim.experiments import grid

    reporter = Reporter()
    if HELP & set(words):
        lines = [f"  {f'--{name} …':28} {about}" for name, about in grid.LISTS.items()]
        lines += [f"  {'--at-once':28} runs at work together; by default one per GPU, or per CPU place"]
        lines += [f"  {'--out':28} folder of the runs and the table; the same command again goes on there", ""]
        reporter.say("\n".join([f"raysim {command}: these, and every setting of `raysim run --help`", "", *lines]))
        return
    wanted = parse(words)
    from raysim.experiments.scheduler import run_grid

    run_grid(wanted, reporter)


def _report(words: Words) -> None:
    """`report RUN_DIR… [--out PAGE]`: of one run its own page, of several one about all of them."""
    from raysim.observe.report import write_comparison, write_report

    first = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    paths, flags = words[:first] or [""], from_command_line(words[first:])
    if flags.keys() - {"out"}:
        raise InputError(f"report: unknown flag {flag(min(flags.keys() - {'out'}))}; there is only --out PAGE")
    out = take(flags, "out")
    written = write_comparison(paths, out) if len(paths) > 1 else write_report(paths[0], out)
    Reporter().say(f"wrote {written}")


# -- listings ----------------------------------------------------------------------------------------------------------


def _methods(words: Words) -> None:
    _list([(name, methods.describe(name)) for name in methods.names()])


def _datasets(words: Words) -> None:
    from raysim.data import catalogue

    _list(catalogue())


def _models(words: Words) -> None:
    from raysim import models

    _list(models.names())


def _presets(words: Words) -> None:
    _list([(name, preset.about) for name, preset in PRESETS.items()])


def _sweeps(words: Words) -> None:
    from raysim.experiments.sweeps import SWEEPS

    _list([(name, sweep.about) for name, sweep in SWEEPS.items()])


def _list(entries: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in entries)
    Reporter().say("\n".join(f"  {name:{width}} {about}" for name, about in entries))


def _settings(words: Words) -> None:
    """Every setting in Markdown: a table for the run, and one for each part of a method."""
    sections = [
        "# Settings\n\nWritten by `make docs` from the program. Each is a flag, a line of a TOML file (a part's in a "
        "table with\nits name) and may be in a preset; `--preset NAME` and `--config FILE` come first, later ones win.",
        markdown_table(RunConfig),
    ]
    for name in _parts():
        sections += [f"## {name}\n\n{methods.describe(name)}", markdown_table(methods.part_class(name), f"{name}.")]
    sys.stdout.write("\n\n".join(sections) + "\n")


def _parts() -> list[str]:
    return [name for name in methods.names() if name != "fedavg" and name not in methods.ALIASES]


COMMANDS: dict[str, tuple[str, Callable[[Words], None]]] = {
    "run": ("run a simulation", _run),
    "resume": ("go on with a run that was interrupted: resume RUN_DIR", _resume),
    "compare": ("methods × seeds × partitions on one cluster, and their table: --methods A B --seeds 0 1 …", _compare),
    "sweep": ("an ablation: sweep NAME, or sweep --over key=value,value …", _sweep),
    "plan": ("print the placement plan of a configuration and stop", _plan),
    "report": ("write a run's HTML report again, or one page about several: report RUN_DIR… [--out PAGE]", _report),
    "methods": ("the methods there are", _methods),
    "datasets": ("the datasets there are", _datasets),
    "models": ("the models there are", _models),
    "presets": ("the papers' settings by name", _presets),
    "sweeps": ("the papers' ablations by name", _sweeps),
    "settings": ("every setting, as docs/settings.md", _settings),
}
