"""What each command does with its words. Imported when a command runs, so that `raysim --help` stays quick."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import sys
from pathlib import Path
from typing import Any

from raysim import methods as all_methods
from raysim import papers
from raysim.cli import HELP
from raysim.config import (
    TOPICS,
    RunConfig,
    by_topic,
    essential,
    from_command_line,
    help_lines,
    load_layers,
    markdown_table,
    resolve,
)
from raysim.errors import InputError, RaysimError
from raysim.experiments.objects import taken_over
from raysim.observe.progress import Reporter, duration
from raysim.settings import flag, nearest, setting_fields

WITH_OWN_HELP = ("run", "plan", "compare", "sweep")  # commands that list settings when asked for help

Words = list[str]


def about(command: str) -> str:
    """What there is to say about a command: the description of its function."""
    return inspect.getdoc(globals()[command]) or ""


def _with_flags(command: str, words: Words, valued: tuple[str, ...], switches: tuple[str, ...] = ()) -> Any:
    """The words that are no flags, and the flags by name, of a command that has only these."""
    plain: Words = []
    flags: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            plain.append(word)
        elif name in switches and not equals:
            flags[name] = "true"
        elif name not in valued:
            known = ", ".join(f"--{each}" for each in (*valued, *switches))
            raise InputError(f"{command}: unknown flag --{name}; there is only {known}")
        elif not equals and (not rest or rest[0].startswith("--")):
            raise InputError(f"command line: --{name} needs a value; write --{name} VALUE")
        else:
            flags[name] = value if equals else rest.pop(0)
    return plain, flags


def _count(command: str, name: str, text: str) -> int:
    """A whole number above 0 that a flag gives."""
    if not (text.isascii() and text.isdigit() and 0 < int(text[:10]) < 10**9):
        raise InputError(f"{command}: --{name} must be a whole number above 0, not '{text}'")
    return int(text)


# -- one run -----------------------------------------------------------------------------------------------------------


def run(words: Words, defaults: dict[str, object] | None = None, beside: str | None = None) -> None:
    """`raysim run [settings]`: one run, whose results are in its run directory."""
    if (config := _config("run", words, defaults)) is None:
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
    """`raysim resume RUN_DIR [settings]`: a run goes on after its last checkpoint.

    It has the settings it began with. Those that do not decide its result may be given anew, such as --actors.
    """
    from raysim.single_run import to_resume

    if not words:
        raise InputError("resume: say which run; give the path a run printed")
    _run_one(to_resume(words[0], from_command_line(words[1:]), "command line"))


def plan(words: Words) -> None:
    """`raysim plan [settings]`: print the placement plan of a run and stop."""
    if (config := _config("plan", words)) is None:
        return
    from raysim.engine.ray_runner import cluster
    from raysim.single_run import plan_for, prepare

    dataset, dealt = prepare(config)
    with cluster.connected():
        Reporter().say(plan_for(config, dataset, dealt).describe())


def doctor(words: Words) -> None:
    """`raysim doctor`: examine the cluster that RAY_ADDRESS names, or this machine.

    It prints what Ray and torch see: versions, driver, memory, MPS, whether the token is on. Every node reads what
    every other has in its object store, which needs its ports. Then it trains one client on every GPU, twice: bits must
    repeat, agree on all GPUs of a kind, and be the CPU's but for rounding. Exit code 1 and a line if something is
    wrong.
    """
    if words:
        raise InputError(f"doctor takes no settings, and was given '{words[0]}'")
    from raysim.engine.ray_runner import cluster
    from raysim.engine.ray_runner.doctor import cluster_facts, examine_devices, examine_transfers

    with cluster.connected():
        Reporter().say("\n".join(cluster_facts()))
        transfers, unread = examine_transfers()
        Reporter().say(transfers)
        found, unexamined = examine_devices()
    for one in found:
        facts = ", ".join(f"{name} {value}" for name, value in one.facts.items())
        Reporter().say(
            f"{one.name}: {facts}\n  self-test: {one.seconds:.1f} s, {one.sha256[:16]}, "
            f"{'repeats itself' if one.repeats else 'differs from itself'}, {one.apart:.0e} from the CPU's update"
        )
    from raysim.engine.self_test import faults

    if wrong := unread + unexamined + faults(found):
        raise RaysimError("; ".join(wrong))
    Reporter().say("everything promised holds here")


def _config(command: str, words: Words, defaults: dict[str, object] | None = None) -> RunConfig | None:
    """Return the configuration that the words ask for, or None if they ask for help, which is printed."""
    at = next((i for i, word in enumerate(words) if word in HELP), None)
    if at is None:
        return resolve(load_layers(taken_over(from_command_line(words)), defaults or {}))
    topic = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("--") else None
    rest = words[:at] + words[at + (2 if topic else 1) :]
    if topic:
        lines = _help_on(topic)
    else:
        layers = load_layers(taken_over(from_command_line(rest)), defaults or {})
        methods = [str(values["method"]) for _, values in layers if "method" in values]
        lines = [*about(command).splitlines(), "", *_short_help(methods[-1:])]
    Reporter().say("\n".join(lines))
    return None


def _short_help(methods: list[str]) -> list[str]:
    """Return the settings that most people need, those of these methods, and where the others are."""
    lines = help_lines(essential(RunConfig))
    lines += ["  --preset        start from a paper's settings; `raysim presets` lists them"]
    lines += ["  --config        start from a TOML file: a line per setting, a table per method", ""]
    for method in methods:
        for prefix, part in all_methods.part_classes(all_methods.expand(method)[0]).items():
            lines += [_first_line(part), *help_lines(setting_fields(part), f"{prefix}."), ""]
    lines += [f"  --help {word:10} {topic.heading}" for word, topic in TOPICS.items()]
    return [*lines, "  --help METHOD     A method's settings; --help all: every setting"]


def _help_on(topic: str) -> list[str]:
    """Return the settings of a topic or of a method, or all there are."""
    topics = by_topic(RunConfig)
    if topic in topics:
        return [TOPICS[topic].heading, *help_lines(topics[topic])]
    if topic == "all":
        parts = {name: all_methods.part_class(name) for name in _parts()}
    else:
        try:
            parts = all_methods.part_classes(all_methods.expand(topic)[0])
        except InputError:
            known = [*topics, "all", *all_methods.names()]
            raise InputError(
                f"--help: no topic or method '{topic}'{nearest(topic, known, '; see `run --help`')}"
            ) from None
        topics = {}
    lines = []
    for word, fields in topics.items():
        lines += [TOPICS[word].heading, *help_lines(fields), ""]
    for prefix, part in parts.items():
        lines += [_first_line(part), *help_lines(setting_fields(part), f"{prefix}."), ""]
    return lines[:-1] or [all_methods.describe(topic)]


def _first_line(part: type) -> str:
    return next(iter((inspect.getdoc(part) or "").splitlines()), part.__name__)


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
        _many("search", words, {key: field.metadata["help"] for key, field in setting_fields(search.Options).items()})
        return
    search.run_search(search.from_lists(*grid.read(words)), Reporter())


def _many(command: str, words: Words, further: dict[str, str] | None = None) -> None:
    """All runs of a grid, their table and their report."""
    from raysim.experiments import grid

    reporter = Reporter()
    if HELP & {*words}:
        lines = [f"  {f'--{name} …':28} {about}" for name, about in grid.LISTS.items()]
        lines += [f"  {f'--{name}':28} {about}" for name, about in (further or {}).items()]
        lines += [f"  {'--at-once':28} runs at work together; by default one per GPU, or per CPU place"]
        lines += [f"  {'--out':28} folder of the runs and the table; the same command again goes on there", ""]
        reporter.say("\n".join([f"raysim {command}: these, and every setting of `raysim run --help all`", "", *lines]))
        return
    wanted = grid.from_words(command, words)
    from raysim.experiments.scheduler import run_grid

    run_grid(wanted, reporter)


def report(words: Words) -> None:
    """`raysim report RUN_DIR… [--out PAGE]`: of one run its own page, of several one about all of them.

    A folder stands for the runs in it. Without --out the page is report.html in the run directory, or comparison.html
    in the folder that the runs share.
    """
    from raysim.observe.report import write_comparison, write_report
    from raysim.storage.run_reader import find_runs

    paths, flags = _with_flags("report", words, ("out",))
    runs, out = find_runs(paths or [""]), flags.get("out")
    written = write_comparison(runs, out) if len(runs) > 1 else write_report(runs[0], out)
    Reporter().say(f"wrote {written}")


def show(words: Words) -> None:
    """`raysim show RUN_DIR… [--sort BY] [--top N] [--json | --csv | --markdown | --latex]`: one line per run.

    A folder stands for the runs in it. A line has the settings in which the runs differ, the final, the best and the
    last quarter's mean accuracy, and the time. --sort takes final (which comes first without it), best, late, seconds,
    run, or a setting in which the runs differ. --top 5 shows the first five.
    """
    from raysim.observe import listing
    from raysim.tables import FORMATS, Table

    paths, flags = _with_flags("show", words, ("sort", "top"), tuple(FORMATS))
    chosen = [name for name in FORMATS if name in flags]
    if len(chosen) > 1:
        raise InputError(f"show: give --{chosen[0]} or --{chosen[1]}, not both")
    top = _count("show", "top", flags["top"]) if "top" in flags else None
    found = listing.lines(paths or ["runs"], flags.get("sort", "final"), top)
    sys.stdout.write(f"{(FORMATS[chosen[0]] if chosen else Table.text)(listing.table(found))}\n")


def features(words: Words) -> None:
    """`raysim features RUN_DIR… [--out features.png] [--count 300]`: one t-SNE map of what several runs shared.

    It has so many images of each run and of the test split, by the features of the first run's final model: classes by
    colour, runs by level, real images the lightest. HFMDS-FL's figure 4 is such a map, of runs that differ in hfmds.mu.
    """
    from raysim.experiments.feature_map import draw_map

    paths, flags = _with_flags("features", words, ("out", "count"))
    out = Path(flags.get("out", "features.png"))
    if out.suffix != ".png" or not out.absolute().parent.is_dir():
        raise InputError(f"features: --out {out} is no .png in a folder that exists; give another")
    apart = draw_map(paths or [""], out, _count("features", "count", flags.get("count", "300")))
    lines = [f"  {kind}: {distance:.2f}" for kind, distance in apart.items()]
    Reporter().say("\n".join(["mean distance of features to the real ones' mean of their class:", *lines]))
    Reporter().say(f"wrote {out}")


# -- listings ----------------------------------------------------------------------------------------------------------


def methods(words: Words) -> None:
    """`raysim methods`: the methods there are; `raysim methods NAME`: one with its settings, also an own one."""
    if (name := _one("methods", words)) is None:
        return _list([(name, all_methods.describe(name)) for name in all_methods.names()])
    target = all_methods.expand(name)[0]
    lines = [all_methods.describe(name)] if name in all_methods.ALIASES or name == "fedavg" else []
    for prefix, part in all_methods.part_classes(target).items():
        lines += ["", inspect.getdoc(part) or prefix, "", *help_lines(setting_fields(part), f"{prefix}.")]
    Reporter().say("\n".join(lines).strip("\n"))


def datasets(words: Words) -> None:
    """`raysim datasets`: the datasets there are by name."""
    from raysim.data import catalogue

    _list(catalogue())


def models(words: Words) -> None:
    """`raysim models`: the classifiers there are by name."""
    from raysim import models as all_models

    _list(all_models.names())


def presets(words: Words) -> None:
    """`raysim presets`: the papers' settings by name; `raysim presets NAME`: one, as a TOML file for --config."""
    if (name := _one("presets", words)) is None:
        return _list([(name, preset.about) for name, preset in papers.presets().items()])
    if name not in papers.presets():
        raise InputError(f"presets: unknown preset '{name}'{nearest(name, papers.presets(), '; see `raysim presets`')}")
    preset = papers.presets()[name]
    sys.stdout.write(f"# {preset.about}\n{_toml(preset.settings)}\n")


def _toml(settings: dict[str, Any]) -> str:
    """Settings as a TOML file has them, those of parts in tables."""
    given = {key: value for key, value in settings.items() if value is not None}
    lines = [f"{key} = {json.dumps(value)}" for key, value in given.items() if "." not in key]
    for part in dict.fromkeys(key.partition(".")[0] for key in given if "." in key):
        own = {key.partition(".")[2]: value for key, value in given.items() if key.startswith(f"{part}.")}
        lines += ["", f"[{part}]", *(f"{key} = {json.dumps(value)}" for key, value in own.items())]
    return "\n".join(lines)


def sweeps(words: Words) -> None:
    """`raysim sweeps`: the papers' tables and ablations by name; `raysim sweeps NAME`: the runs of one."""
    from raysim.experiments.grid import unknown_sweep

    if (name := _one("sweeps", words)) is None:
        return _list([(name, sweep.about) for name, sweep in papers.sweeps().items()])
    if name not in papers.sweeps():
        raise unknown_sweep(name)
    sweep = papers.sweeps()[name]
    runs = math.prod(map(len, sweep.axes)) * max(1, len(sweep.seeds))
    lines = [sweep.about, f"{runs} runs; seeds: {', '.join(map(str, sweep.seeds)) or 'that of the settings'}", ""]
    lines += ["all of them: " + _words_of(sweep.base)]
    for axis in sweep.axes:
        lines += ["", "each of:", *(f"  {point}: {_words_of(settings)}" for point, settings in axis.items())]
    if sweep.paper:
        lines += ["", "the paper's accuracy in %:", *(f"  {row}: {value:g}" for row, value in sweep.paper.items())]
    Reporter().say("\n".join(lines))


def _words_of(settings: dict[str, object]) -> str:
    """Settings as they are written on the command line."""
    return " ".join(f"{flag(key)} {'none' if value is None else value}" for key, value in settings.items())


def _one(command: str, words: Words) -> str | None:
    """The one name that a listing may be given."""
    if len(words) > 1 or (words and words[0].startswith("--")):
        raise InputError(f"{command}: give one name, or none for the list of all")
    return words[0] if words else None


def _list(entries: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in entries)
    Reporter().say("\n".join(f"  {name:{width}} {about}" for name, about in entries))


def settings(words: Words) -> None:
    """`raysim settings`: every setting in Markdown, by topic, and those of every method."""
    sections = [
        "# Settings\n\nWritten by `make docs` from the program. Each is a flag, a line of a TOML file (a part's in a "
        "table with\nits name) and may be in a preset; `--preset NAME` and `--config FILE` come first, later ones win.",
    ]
    for word, fields in by_topic(RunConfig).items():
        sections += [f"## {TOPICS[word].heading}", markdown_table(fields)]
    for name in _parts():
        table = markdown_table(setting_fields(all_methods.part_class(name)), f"{name}.")
        sections += [f"## {name}\n\n{all_methods.describe(name)}", table]
    sys.stdout.write("\n\n".join(sections) + "\n")


def _parts() -> list[str]:
    return [name for name in all_methods.names() if name != "fedavg" and name not in all_methods.ALIASES]
