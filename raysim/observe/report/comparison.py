"""Several runs on one page: curves with a band over the seeds, and a table with the papers' figures beside ours."""

import json
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysim import papers
from raysim.config import RunConfig
from raysim.data import partitions
from raysim.engine.round_metrics import RoundMetrics
from raysim.errors import InputError
from raysim.observe.progress import duration
from raysim.observe.report import specs
from raysim.observe.report.page import Page, bytes_text, escape, settings_list, table, text_of
from raysim.storage.run_reader import Run, read_run

# Runs are comparable where these agree: the data, and how it is dealt. A page has a section for each such problem.
PROBLEM = (
    "dataset", "train_size", "fraction", "test_size", "image_size", "partition", *partitions.own_settings(), "clients",
)  # fmt: skip
OPERATIONAL = RunConfig.operational()
SINGLE = ("method", "seed", *OPERATIONAL)  # settings that no preset decides
Spread = tuple[float, float | None]  # mean and sample standard deviation, the latter of two values or more


@dataclass(frozen=True)
class Group:
    """The runs of one configuration, which differ in their seed only, and those that repeat one of them."""

    name: str
    runs: list[Run]
    repeated: Sequence[Run] = ()  # the same once more: a figure that counted it twice would look surer than it is

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of its first run."""
        return self.runs[0].settings

    def spread(self, key: str, factor: float = 1.0) -> Spread | None:
        """The spread of a value in the finished runs' summaries; None where no run is finished."""
        values = [factor * run.summary[key] for run in self.runs if run.summary.get(key) is not None]
        return mean_and_std(values)


def mean_and_std(values: list[float]) -> Spread | None:
    """The spread of some values; None where there are none.

    >>> mean_and_std([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    return (statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None) if values else None


def write_comparison(run_dirs: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write one page about these runs, by default comparison.html in the folder they share, and return its path."""
    runs = [read_run(path) for path in dict.fromkeys(map(Path, run_dirs))]
    if not runs:
        raise InputError("report: no run directory given; give the paths that runs printed")
    shared = Path(os.path.commonpath([run.path.resolve().parent for run in runs]))
    out = Path(out) if out else shared / "comparison.html"
    problems: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        problems.setdefault(tuple(run.settings.get(key) for key in PROBLEM), []).append(run)
    datasets = dict.fromkeys(Path(str(run.settings["dataset"])).name for run in runs)
    groups = [grouped(members) for members in problems.values()]
    methods = sum(len(found) for found in groups)
    counted = f"{len(runs):,} runs, {methods:,} configurations, {len(problems):,} setting{'s' * (len(problems) > 1)}"
    page = Page(f"Comparison on {', '.join(datasets)}", counted)
    for found in groups:
        _section(page, found, out)
    _common(page, runs)
    return page.write(out)


def grouped(runs: list[Run]) -> list[Group]:
    """The runs of one problem by configuration, named by the method and by further settings in which they differ."""
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        identity = {k: v for k, v in run.settings.items() if k not in ("seed", *OPERATIONAL)}
        kinds.setdefault(json.dumps([identity, run.sources], sort_keys=True), []).append(run)
    settings = [members[0].settings for members in kinds.values()]
    # Compared are settings that two runs both have: those of a part do not count beside a run without that part.
    varied = [
        key for key in dict.fromkeys(key for each in settings for key in each)
        if key not in SINGLE and len({json.dumps(each[key]) for each in settings if key in each}) > 1
    ]  # fmt: skip
    own = [members[0].sources for members in kinds.values()]  # which may differ though the names are the same
    sources = [key for key in dict.fromkeys(key for each in own for key in each) if len({s.get(key) for s in own}) > 1]
    groups = []
    for members in kinds.values():
        first = members[0]
        details = [f"{key} {text_of(first.settings[key])}" for key in varied if first.settings.get(key) is not None]
        details += [f"{key} {first.sources[key][:6]}" for key in sources if key in first.sources and key not in varied]
        name = papers.method_name(first.settings) if first.settings["method"] == "hfmds" else first.settings["method"]
        groups.append(Group(", ".join([name, *details]), *_once_per_seed(members)))
    return groups


def _once_per_seed(runs: list[Run]) -> tuple[list[Run], list[Run]]:
    """The run of each seed that has come furthest, in the order of the seeds, and the others."""
    furthest: dict[int, Run] = {}
    for run in sorted(runs, key=lambda run: (not run.summary, -len(run.history))):
        furthest.setdefault(run.settings["seed"], run)
    return [furthest[seed] for seed in sorted(furthest)], [run for run in runs if run not in furthest.values()]


def departures(settings: dict[str, Any]) -> list[str]:
    """The settings in which a run differs from the nearest preset of its dataset; empty if that has no preset.

    A preset for the same method is nearest. With one for another method, only settings that all methods have are
    compared. How samples are dealt does not count: the papers have several such cases.
    """
    candidates = []
    for name, preset in papers.presets().items():
        wanted = preset.settings
        if wanted.get("dataset") != settings["dataset"] or name.endswith("-small"):  # which are not the papers'
            continue
        keys = {*wanted, "train_size", "fraction", "test_size"} - {*SINGLE, "partition", *partitions.own_settings()}
        another = wanted["method"] != settings["method"]
        different = [
            f"{key} {text_of(settings.get(key))}" + (f" (not {text_of(wanted[key])})" if key in wanted else "")
            for key in sorted(keys)
            if settings.get(key) != wanted.get(key) and not (another and "." in key)
        ]
        candidates.append((another, len(different), different))
    return min(candidates, default=(True, 0, []))[2]


def _section(page: Page, groups: list[Group], out: Path) -> None:
    first = groups[0].runs[0]
    name = Path(str(first.settings["dataset"])).name
    size = first.settings.get("train_size") or (
        first.settings.get("fraction") and f"{100 * first.settings['fraction']:g} % of the"
    )
    note = f"{text_of(size)} training images. " if size else ""
    note += "Figures are means and sample standard deviations over the seeds of runs that are otherwise the same."
    if repeated := sum(len(group.repeated) for group in groups):
        note += f" {repeated} of the runs repeat{'s' * (repeated == 1)} another with its seed, and count once."
    percent = _bands(groups, lambda m: None if m.accuracy is None else 100.0 * m.accuracy, "percent", tall=True)
    accuracy = page.chart("Test accuracy", percent, _band_note(groups), wide=True)
    charts = page.chart("Test loss", _bands(groups, lambda m: m.loss), "cross-entropy")
    charts += page.chart("Local training loss", _bands(groups, lambda m: m.train_loss), "cross-entropy")
    charts += page.chart("PSNR", _bands(groups, lambda m: m.reported.get("psnr"), "decibel"))
    times = _bands(groups, lambda m: m.seconds, "seconds")
    charts += page.chart("Time of a round", times and times | {"legend": "median"}, "medians beside the names")
    page.section(
        f"{name}, {first.setting_text}", f"<p>{escape(note)}</p>", _table(groups), accuracy,
        f'<div class="charts">{charts}</div>', "<h3>Runs</h3>", _runs(groups, out),
    )  # fmt: skip


def _band_note(groups: list[Group]) -> str:
    return "mean over seeds; band: ± a standard deviation" if any(len(g.runs) > 1 for g in groups) else "one seed each"


def _bands(
    groups: list[Group], read: Callable[[RoundMetrics], float | None], unit: str = "number", tall: bool = False
) -> specs.Spec | None:
    """A line with a band for each group, of the value that `read` finds in a round."""
    bands = [_band(group, read) | {"colour": i} for i, group in enumerate(groups)]
    spec = specs.lines(bands, unit, tall)
    return spec and spec | {"named": True}


def _band(group: Group, read: Callable[[RoundMetrics], float | None]) -> specs.Spec:
    """Mean and ± standard deviation over the seeds, at every round for which one of them has a value."""
    values: dict[int, list[float]] = {}
    places: dict[int, list[tuple[float, float]]] = {}
    for run in group.runs:
        reached = specs.reached(run.history)
        for metrics in run.history:
            if (value := read(metrics)) is not None:
                values.setdefault(metrics.round, []).append(value)
                places.setdefault(metrics.round, []).append(reached[metrics.round])
    points = specs.thin([(t, len(values[t]), spread) for t in sorted(values) if (spread := mean_and_std(values[t]))])
    series: specs.Spec = {"name": group.name, "x": [t for t, _, _ in points]}
    means = [[statistics.fmean(each) for each in zip(*places[t], strict=True)] for t, _, _ in points]
    series |= specs.other_axes([(seconds, sent) for seconds, sent in means])
    series["y"] = [specs.significant(mean) for _, _, (mean, _) in points]
    if any(std is not None for _, _, (_, std) in points):
        for name, sign in (("low", -1), ("high", 1)):
            series[name] = [specs.significant(mean + sign * (std or 0.0)) for _, _, (mean, std) in points]
        series["n"] = [n for _, n, _ in points]
    return series


def spread_text(spread: Spread | None, digits: int = 2) -> str:
    """12.34 ± 0.56, or – where there is nothing."""
    if spread is None:
        return "–"
    mean, std = spread
    return f"{mean:,.{digits}f}" + ("" if std is None else f" ± {std:,.{digits}f}")


def _table(groups: list[Group]) -> str:
    similar = any(group.spread("psnr") for group in groups)
    figures = [figure for group in groups for figure in papers.find(group.settings)]
    reported, costs = bool(figures), any(figure.gflops for figure in figures)
    measured = any(_feature_fd(group) for group in groups)
    heads = ["method", "runs", "accuracy %", "last quarter %", "best %"]
    heads += ["paper %"] if reported else []
    heads += ["PSNR dB"] + ["paper dB"] * reported if similar else []
    heads += ["feature FD"] if measured else []
    heads += ["GFLOPs*"] + ["paper GFLOPs"] * costs
    heads += ["sent up", "sent down", "time"]
    finals = [final[0] for group in groups if (final := group.spread("final_accuracy", 100))]
    best = max(finals) if len(groups) > 1 and finals else None
    columns = {"paper": reported, "psnr": similar, "fd": measured, "gflops": costs}
    rows = [_row(group, best, columns) for group in groups]
    notes = [
        f"{group.name}: {', '.join(different)}"
        for group in groups
        if papers.find(group.settings) and (different := departures(group.settings))
    ]
    note = f" Differences from the nearest preset of a paper: {escape('; '.join(notes))}." if notes else ""
    if measured:
        networks = ", ".join(dict.fromkeys(str(group.settings["model"]) for group in groups))
        note = f" Feature FD: by the features of {escape(networks)}, each run's own, not Inception's (FID).{note}"
    note = f"<p><small>* per client and round; sent and time: of a whole run, on average.{note}</small></p>"
    return table(heads, rows, numbers=tuple(range(1, len(heads)))) + note


def _feature_fd(group: Group) -> Spread | None:
    """The Fréchet distance of what the first part shares, by the features of each run's own model."""
    found = ((run.summary.get("measures") or {}).items() for run in group.runs)
    each = (next((value for name, value in items if name.endswith(".fd")), None) for items in found)
    return mean_and_std([value for value in each if value is not None])


def _row(group: Group, best: float | None, columns: dict[str, bool]) -> list[str]:
    """The cells of a group; the highest accuracy (`best`, if there is anything to compare) is bold."""
    figures = papers.find(group.settings)
    final = group.spread("final_accuracy", 100)
    accuracy = spread_text(final)
    if final and best is not None and abs(final[0] - best) < 1e-9:
        accuracy = f"<b>{accuracy}</b>"
    unfinished = sum(not run.summary for run in group.runs)
    note = f"<small>{unfinished} not finished</small>" if unfinished else ""
    cells = [f"{escape(group.name)}{note}", str(len(group.runs)), accuracy]
    cells += [spread_text(group.spread(key, 100)) for key in ("late_accuracy", "best_accuracy")]
    if columns["paper"]:
        cells.append("<br>".join(_reported(f.accuracy, f.std, f.paper) for f in figures) or "–")
    if columns["psnr"]:
        cells.append(spread_text(group.spread("psnr")))
        if columns["paper"]:
            cells.append("<br>".join(f"{f.psnr:.2f}" for f in figures if f.psnr is not None) or "–")
    if columns["fd"]:
        cells.append(spread_text(_feature_fd(group)))
    gflops = [sum(run.summary.get("gflops_per_client_round", {}).values()) for run in group.runs if run.summary]
    cells.append(f"{statistics.fmean(gflops):.3g}" if gflops else "–")
    if columns["gflops"]:
        cells.append("<br>".join(f"{f.gflops:.2f}" for f in figures if f.gflops is not None) or "–")
    cells += [bytes_text(total[0]) if (total := group.spread(key)) else "–" for key in ("bytes_up", "bytes_down")]
    cells.append(duration(took[0]) if (took := group.spread("seconds")) else "–")
    return cells


def _reported(value: float, std: float | None, source: str) -> str:
    return f"{value:.2f}{'' if std is None else f' ± {std:.2f}'}<small>{escape(source)}</small>"


def _runs(groups: list[Group], out: Path) -> str:
    rows = []
    for group in groups:
        for run in (*group.runs, *group.repeated):
            name = escape(run.path.resolve().name)
            if (run.path / "report.html").exists():
                link = os.path.relpath(run.path.resolve() / "report.html", out.resolve().parent)
                name = f'<a href="{escape(Path(link).as_posix())}">{name}</a>'
            summary = run.summary
            accuracy = f"{100 * summary['final_accuracy']:.2f} %" if summary else f"{len(run.history)} rounds so far"
            digest = f"<code>{escape(summary['model_sha256'][:12])}</code>" if summary else ""
            rows.append([name, escape(group.name), str(run.settings["seed"]), accuracy, digest])
    return table(["run", "method", "seed", "final accuracy", "model"], rows, numbers=(2, 3, 4))


def _common(page: Page, runs: list[Run]) -> None:
    """The settings all runs have, and those in which they differ."""
    keys = dict.fromkeys(key for run in runs for key in run.settings if key not in OPERATIONAL)
    same: dict[str, str] = {}
    varied: dict[str, str] = {}
    for key in keys:
        values = dict.fromkeys(text_of(run.settings[key]) for run in runs if key in run.settings)
        if len(values) > 1:
            varied[key] = " | ".join(values)
        elif list(values) != ["–"]:
            same[key] = next(iter(values))
    shared = f"<details><summary>The same in all runs</summary>{settings_list(same)}</details>"
    page.section("Configuration", "<p>What varies between the runs.</p>", settings_list(varied), shared)
