"""The command line: `python -m raysim run …`; jobs/*.py use the same flags through `job`."""

import dataclasses
import json
import sys
from pathlib import Path

from rich.console import Console

from raysim import methods
from raysim.config import PRESETS, RunConfig, from_command_line, help_lines, load_layers, markdown_table, resolve, take
from raysim.engine.ray_runner.environment import secure_local_ray
from raysim.engine.signals import INTERRUPTED, interruptible, leave
from raysim.errors import InputError, RaysimError
from raysim.experiments import grid
from raysim.experiments.sweeps import SWEEPS
from raysim.observe.progress import Reporter, duration
from raysim.settings import flag, nearest

COMMANDS = {
    "run": "run a simulation",
    "resume": "go on with a run that was interrupted: resume RUN_DIR",
    "compare": "methods × seeds × partitions on one cluster, and their table: --methods A B --seeds 0 1 …",
    "sweep": "an ablation: sweep NAME, or sweep --over key=value,value …",
    "plan": "print the placement plan of a configuration and stop",
    "report": "write a run's HTML report again, or one page about several: report RUN_DIR… [--out PAGE]",
    "methods": "the methods there are",
    "datasets": "the datasets there are",
    "models": "the models there are",
    "presets": "the papers' settings by name",
    "sweeps": "the papers' ablations by name",
    "settings": "every setting, as docs/settings.md",
}


def main(arguments: list[str] | None = None) -> int:
    """`python -m raysim COMMAND …`; gives the exit code."""
    return _guarded(_command, sys.argv[1:] if arguments is None else arguments)


def job(beside: str | None = None, **defaults) -> None:
    """A job file's whole content: `run` with other defaults; takes the same flags, exits with the same codes.

    `beside`: run this baseline with the same settings afterwards, and print both accuracies.
    """
    leave(_guarded(lambda words: _run(words, defaults, beside), sys.argv[1:]))


def _guarded(function, words: list[str]) -> int:
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


def _command(words: list[str]) -> None:
    reporter = Reporter()
    command, rest = (words[0], words[1:]) if words else ("--help", [])
    if command in ("-h", "--help", "help"):
        lines = [f"  {name:10} {what}" for name, what in COMMANDS.items()]
        last = "raysim run --help lists the settings"
        reporter.say("\n".join(["usage: raysim COMMAND [settings]", "", *lines, "", last]))
    elif command == "run":
        _run(rest, {})
    elif command == "resume":
        _resume(rest)
    elif command in ("compare", "sweep"):
        _many(command, rest, reporter)
    elif command == "plan":
        _plan(rest, reporter)
    elif command == "report":
        _report(rest, reporter)
    elif command == "settings":
        sys.stdout.write(_settings())
    elif command in COMMANDS:
        listing = _listing(command)
        width = max(len(name) for name, _ in listing)
        reporter.say("\n".join(f"  {name:{width}} {about}" for name, about in listing))
    else:
        raise InputError(f"unknown command '{command}'{nearest(command, COMMANDS, '; see `raysim --help`')}")


def _listing(command: str) -> list[tuple[str, str]]:
    if command == "methods":
        return [(name, methods.describe(name)) for name in methods.names()]
    if command == "presets":
        return [(name, preset.about) for name, preset in PRESETS.items()]
    if command == "sweeps":
        return [(name, sweep.about) for name, sweep in SWEEPS.items()]
    if command == "models":
        from raysim import models

        return models.names()
    from raysim.data import catalogue

    return catalogue()


def _settings() -> str:
    """Every setting in Markdown, a table for the run and one for each part of a method."""
    sections = [
        "# Settings\n\nWritten by `make docs` from the program. Each is a flag, a line of a TOML file (a part's in a "
        "table with\nits name) and may be in a preset; `--preset NAME` and `--config FILE` come first, later ones win.",
        markdown_table(RunConfig),
    ]
    for name in _parts():
        sections += [f"## {name}\n\n{methods.describe(name)}", markdown_table(methods.part_class(name), f"{name}.")]
    return "\n\n".join(sections) + "\n"


def _parts() -> list[str]:
    return [name for name in methods.names() if name != "fedavg" and name not in methods.ALIASES]


def _config(words: list[str], defaults: dict[str, object]) -> RunConfig | None:
    """The configuration the words ask for; None if they ask for help."""
    if {"-h", "--help"} & set(words):
        lines = ["settings (as --flags, or lines of a TOML file given with --config):", *help_lines(RunConfig)]
        lines += [f"  {'--preset':28} start from a paper's settings; `raysim presets`"]
        lines += [f"  {'--config':28} a TOML file of settings"]
        for name in _parts():
            lines += ["", f"{methods.describe(name)}", *help_lines(methods.part_class(name), f"{name}.")]
        Reporter().say("\n".join(lines))
        return None
    return resolve(load_layers(from_command_line(words), defaults))


def _run(words: list[str], defaults: dict[str, object], beside: str | None = None) -> None:
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


def _many(command: str, words: list[str], reporter: Reporter) -> None:
    """`compare` or `sweep`: all runs of a grid, their table and their report."""
    if {"-h", "--help"} & set(words):
        lines = [f"  {f'--{name} …':28} {about}" for name, about in grid.LISTS.items()]
        lines += [f"  {'--at-once':28} runs at work together; by default one per GPU, or per CPU place"]
        lines += [f"  {'--out':28} folder of the runs and the table; the same command again goes on there", ""]
        reporter.say("\n".join([f"raysim {command}: these, and every setting of `raysim run --help`", "", *lines]))
        return
    wanted = getattr(grid, command)(words)
    from raysim.experiments.scheduler import Batch
    from raysim.experiments.table import write_table
    from raysim.observe.report import write_comparison

    batch = Batch(wanted, reporter, on_end=lambda: write_table(wanted, batch.failed))
    try:
        failed = batch.run()
    except KeyboardInterrupt:
        raise KeyboardInterrupt("raysim: interrupted; the same command again goes on") from None
    text = write_table(wanted, failed)
    reporter.say(f"{text}\ntable: {wanted.folder / 'table.md'}")
    if done := [job.folder for job in wanted.jobs if grid.finished(job)]:
        reporter.say(f"report: {write_comparison(done, wanted.folder / 'report.html')}")
    if failed:
        raise RaysimError(f"{len(failed)} of {len(wanted.jobs)} runs failed; the same command again tries only them")


def _resume(words: list[str]) -> None:
    """`resume RUN_DIR [settings]`: its own settings, and those of where to run it."""
    path = Path(words[0]) if words else Path()
    if not words or not (path / "config.json").exists():
        raise InputError(f"resume: '{' '.join(words[:1])}' is not a run directory; give the path a run printed")
    settings = json.loads((path / "config.json").read_text())["settings"] | {"overwrite": False}
    here = {"resume": True, "out": str(path.resolve())}
    _run_one(resolve([(str(path / "config.json"), settings), ("command line", from_command_line(words[1:]) | here)]))


def _run_one(config: RunConfig) -> tuple[Path, dict]:
    from raysim.run import run

    reporter = Reporter()
    out, summary = run(config, reporter)
    reporter.say(
        f"done: accuracy {100 * summary['final_accuracy']:.2f} % (best {100 * summary['best_accuracy']:.2f} %) "
        f"after {summary['rounds']} rounds in {duration(summary['seconds'])}\n"
        f"model sha256 {summary['model_sha256']}\nreport: {out / 'report.html'}"
    )
    return out, summary


def _report(words: list[str], reporter: Reporter) -> None:
    """`report RUN_DIR…`: of one run its own page, of several one about all of them."""
    from raysim.observe.report import write_comparison, write_report

    first = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    paths, flags = words[:first] or [""], from_command_line(words[first:])
    if flags.keys() - {"out"}:
        raise InputError(f"report: unknown flag {flag(min(flags.keys() - {'out'}))}; there is only --out PAGE")
    write = write_comparison if len(paths) > 1 else lambda paths, out: write_report(paths[0], out)
    reporter.say(f"wrote {write(paths, take(flags, 'out'))}")


def _plan(words: list[str], reporter: Reporter) -> None:
    if (config := _config(words, {})) is None:
        return
    from raysim.engine.ray_runner import cluster
    from raysim.run import plan_for, prepare

    dataset, dealt = prepare(config)
    with cluster.connected():
        reporter.say(plan_for(config, dataset, dealt).describe())


if __name__ == "__main__":
    leave(main())
