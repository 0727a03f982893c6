"""What each command does with its words. Imported when a command runs, so that `raysim --help` stays quick."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from raysim import methods as all_methods
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
from raysim.errors import InputError
from raysim.observe.progress import Reporter, duration
from raysim.settings import flag

HELP = {"-h", "--help"}

Words = list[str]


# -- one run -----------------------------------------------------------------------------------------------------------


def run(words: Words, defaults: dict[str, object] | None = None, beside: str | None = None) -> None:
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
            f"report: {out}/report.html"
        )


def resume(words: Words) -> None:
    """`resume RUN_DIR [settings]`: its own settings, and those that say where and how to run it."""
    from raysim.storage.formats import read_config
    from raysim.storage.remote import is_remote, readable

    given = words[0] if words else ""
    with readable(given) as path:
        if not words or not (path / "config.json").exists():
            raise InputError(f"resume: '{given}' is not a run directory; give the path a run printed")
        source = f"{given}/config.json"
        recorded = from_record(read_config(path)["settings"], source) | {"overwrite": False}
    here = {"resume": True, "out": given if is_remote(given) else str(path.resolve())}
    _run_one(resolve([(source, recorded), ("command line", from_command_line(words[1:]) | here)]))


def plan(words: Words) -> None:
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
        lines += ["", all_methods.describe(name), *help_lines(all_methods.part_class(name), f"{name}.")]
    return lines


def _run_one(config: RunConfig) -> tuple[Path | str, dict[str, Any]]:
    from raysim.single_run import run

    reporter = Reporter()
    out, summary = run(config, reporter)
    ended = f"; {summary['stopped']}" if summary.get("stopped") else ""
    reporter.say(
        f"done: accuracy {100 * summary['final_accuracy']:.2f} % (best {100 * summary['best_accuracy']:.2f} %) "
        f"after {summary['rounds']} rounds in {duration(summary['seconds'])}{ended}\n"
        f"model sha256 {summary['model_sha256']}\nreport: {out}/report.html"
    )
    return out, summary


# -- many runs ---------------------------------------------------------------------------------------------------------


def compare(words: Words) -> None:
    """`compare --methods A B …`: methods × seeds × partitions, and their table."""
    _many("compare", words)


def sweep(words: Words) -> None:
    """`sweep NAME`, or `sweep --over key=value,value …`: an ablation and its table."""
    _many("sweep", words)


def search(words: Words) -> None:
    """`search --over key=KIND:VALUES … --trials N`: settings drawn at random, and their table."""
    from raysim.experiments import grid, search

    if HELP & set(words):
        _many("search", words, search.FLAGS)
        return
    search.run_search(search.from_lists(*grid.read(words)), Reporter())


def _many(command: str, words: Words, further: dict[str, str] | None = None) -> None:
    """All runs of a grid, their table and their report."""
    from raysim.experiments import grid

    reporter = Reporter()
    if HELP & set(words):
        lines = [f"  {f'--{name} …':28} {about}" for name, about in grid.LISTS.items()]
        lines += [f"  {f'--{name}':28} {about}" for name, about in (further or {}).items()]
        lines += [f"  {'--at-once':28} runs at work together; by default one per GPU, or per CPU place"]
        lines += [f"  {'--out':28} folder of the runs and the table; the same command again goes on there", ""]
        reporter.say("\n".join([f"raysim {command}: these, and every setting of `raysim run --help`", "", *lines]))
        return
    wanted = grid.from_words(command, words)
    from raysim.experiments.scheduler import run_grid

    run_grid(wanted, reporter)


def report(words: Words) -> None:
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


def methods(words: Words) -> None:
    _list([(name, all_methods.describe(name)) for name in all_methods.names()])


def datasets(words: Words) -> None:
    from raysim.data import catalogue

    _list(catalogue())


def models(words: Words) -> None:
    from raysim import models as all_models

    _list(all_models.names())


def presets(words: Words) -> None:
    _list([(name, preset.about) for name, preset in PRESETS.items()])


def sweeps(words: Words) -> None:
    from raysim.experiments.sweeps import SWEEPS

    _list([(name, sweep.about) for name, sweep in SWEEPS.items()])


def _list(entries: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in entries)
    Reporter().say("\n".join(f"  {name:{width}} {about}" for name, about in entries))


def settings(words: Words) -> None:
    """Every setting in Markdown: a table for the run, and one for each part of a method."""
    sections = [
        "# Settings\n\nWritten by `make docs` from the program. Each is a flag, a line of a TOML file (a part's in a "
        "table with\nits name) and may be in a preset; `--preset NAME` and `--config FILE` come first, later ones win.",
        markdown_table(RunConfig),
    ]
    for name in _parts():
        table = markdown_table(all_methods.part_class(name), f"{name}.")
        sections += [f"## {name}\n\n{all_methods.describe(name)}", table]
    sys.stdout.write("\n\n".join(sections) + "\n")


def _parts() -> list[str]:
    return [name for name in all_methods.names() if name != "fedavg" and name not in all_methods.ALIASES]
