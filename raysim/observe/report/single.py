"""The report of one run, section by section; a section whose files are missing is left out."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

from raysim import papers
from raysim.config import RunConfig
from raysim.engine.round_metrics import RoundMetrics
from raysim.measures import IMAGE_MEASURES, TRAINING
from raysim.observe.names import figure_name
from raysim.observe.progress import duration
from raysim.observe.report import specs
from raysim.observe.report.comparison import departures
from raysim.observe.report.page import Page, bytes_text, escape, settings_list, table, text_of, tiles
from raysim.observe.report.pairs import image_pairs
from raysim.storage.formats import DamagedFile
from raysim.storage.run_reader import Run, read_run

EVENTS = 200  # in the table at most
GENERATOR = {
    "fid": "Fidelity loss", "div": "Diversity loss", "ad": "Distance to prototypes", "intra": "within a class",
    "inter": "between classes",
}  # fmt: skip

SYNTHESIS = {
    "ratio": "gradient of matching ÷ of cross-entropy, at first", "matching_start": "matching loss at first",
    "matching_end": "at the end", "cosine_end": "cosine to the target", "ce_end": "cross-entropy", "psnr": "PSNR",
    "recognised": "share whose source is recognised",
}  # fmt: skip


def write_report(path: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a run directory, by default as its report.html, and return the page's path."""
    run = read_run(path)
    s = run.settings
    page = Page(run.title, f"{run.setting_text}, {s['model']}, {s['rounds']:,} rounds, seed {s['seed']}")
    if not run.summary:
        page.head.append(f'<p class="unfinished">Not finished: {len(run.history)} of {s["rounds"]} rounds.</p>')
    elif ended := run.summary.get("stopped"):
        page.head.append(f'<p class="unfinished">Ended after {len(run.history)} rounds: {escape(ended)}.</p>')
    left_out: list[str] = []
    page.head += _warnings(run)
    page.head.append(tiles(_key_figures(run)))
    for add in (
        _accuracy, _terms, _clients, _synthetic, _privacy, _features, _generator, _further, _time, _traffic, _events,
        _configuration, _place,
    ):  # fmt: skip
        try:
            add(page, run)
        except DamagedFile as damage:
            left_out.append(f"<p>{escape(str(damage))}.</p>")
    page.section("Left out", *left_out)
    return page.write(Path(out) if out else run.path / "report.html")


def _warnings(run: Run) -> list[str]:
    """Return the run's warnings, once each; none where the events are damaged, as another section says."""
    try:
        texts = dict.fromkeys(event.get("text") for event in run.lines("events.jsonl") if event["event"] == "warning")
    except DamagedFile:
        return []
    return [f'<p class="warning">{escape(text)}</p>' for text in texts if text]


def _key_figures(run: Run) -> list[tuple[str, str, str]]:
    """Return name, value and note of the figures at the top of the page."""
    history, summary = run.history, run.summary
    figures = []
    if run.evaluated:
        last, best = run.evaluated[-1], max(run.evaluated, key=_accuracy_of)
        figures.append(("Accuracy", f"{100 * _accuracy_of(last):.2f} %", f"after round {last.round}"))
        figures.append(("Best accuracy", f"{100 * _accuracy_of(best):.2f} %", f"in round {best.round}"))
    for figure in papers.find(run.settings):
        spread = f"± {figure.std:.2f}, " if figure.std is not None else ""
        figures.append(("A paper's", f"{figure.accuracy:.2f} %", f"{spread}{figure.paper}"))
    if history:
        in_rounds = sum(metrics.seconds for metrics in history)
        seconds = summary.get("seconds") or in_rounds
        figures.append(("Time", duration(seconds), f"{in_rounds / len(history):.2f} s a round"))
    if similar := _reported(run, "psnr"):
        figures.append(("PSNR", f"{similar[-1][1]:.2f} dB", "synthetic beside real"))
    if gflops := summary.get("gflops_per_client_round"):
        reported = (f"; {figure.gflops:g} in HFMDS-FL table 3" for figure in papers.find(run.settings) if figure.gflops)
        figures.append(("GFLOPs", f"{sum(gflops.values()):.3g}", f"per client and round{''.join(reported)}"))
    if history:
        up, down = sum(metrics.bytes_up for metrics in history), sum(metrics.bytes_down for metrics in history)
        figures.append(("Sent by clients", bytes_text(up), f"to them {bytes_text(down)}"))
        skipped = sum(metrics.skipped for metrics in history)
        note = f"{skipped:,} clients skipped" if skipped else "no client skipped"
        if peak := max(metrics.gpu_bytes or 0 for metrics in history):
            figures.append(("GPU memory", bytes_text(peak), "the most that a client actor held"))
        figures.append(("Failures", f"{sum(metrics.failures for metrics in history):,}", note))
    return figures


def _accuracy_of(metrics: RoundMetrics) -> float:
    """Return the accuracy of a round that was evaluated."""
    assert metrics.accuracy is not None
    return metrics.accuracy


def _reported(run: Run, key: str) -> list[tuple[int, float]]:
    """Return round and value of a number wherever a part reported it."""
    found = ((metrics.round, metrics.reported.get(key)) for metrics in run.history)
    return [(t, value) for t, value in found if isinstance(value, int | float)]


def _accuracy(page: Page, run: Run) -> None:
    places = specs.reached(run.history)
    points = [(metrics.round, metrics.accuracy) for metrics in run.evaluated]
    accuracy = specs.lines([specs.curve("accuracy", points, 100, places)], "percent")
    losses = [
        specs.curve("test", [(metrics.round, metrics.loss) for metrics in run.evaluated], places=places),
        specs.curve("local training", [(metrics.round, metrics.train_loss) for metrics in run.history], places=places),
    ]
    whose = "of the clients' own models" if run.settings.get("evaluation") == "clients" else "of the global model"
    charts = page.chart("Test accuracy", accuracy, whose) + page.chart("Cross-entropy", specs.lines(losses))
    different = departures(run.settings) if papers.find(run.settings) else []
    note = f"Differences from the nearest preset of a paper: {escape(', '.join(different))}." if different else ""
    page.section("Accuracy and loss", charts and f'<p>{note}</p><div class="charts">{charts}</div>')


def _terms(page: Page, run: Run) -> None:
    names = sorted({name for metrics in run.history for name in metrics.terms})
    charts = []
    for name in names:
        points = [(metrics.round, metrics.terms.get(name)) for metrics in run.history]
        charts.append(page.chart(name, specs.lines([specs.curve(name, points)])))
    if charts:
        note = "<p>The clients' mean of each term that the method adds to the cross-entropy, as it is added.</p>"
        page.section("Loss terms", note, f'<div class="charts small">{"".join(charts)}</div>')


def _clients(page: Page, run: Run) -> None:
    if (counts := run.labels()) is None:
        return
    names = run.facts.get("classes") or [str(i) for i in range(counts.shape[1])]
    sizes = counts.sum(axis=1)
    summary = (
        f"<p>{len(sizes):,} clients with {sizes.min():,} to {sizes.max():,} samples, {sizes.sum():,} together; "
        f"a client has {(counts > 0).sum(axis=1).mean():.1f} of {counts.shape[1]:,} classes on average.</p>"
    )
    note = "bars: a client's size; colour: samples of a class, logarithmic"
    page.section("Clients' data", summary, page.chart("Labels over clients", specs.heat(counts, names), note))


def _synthetic(page: Page, run: Run) -> None:
    similar = _reported(run, "psnr")
    chart = page.chart(
        "PSNR over rounds",
        specs.lines([specs.curve("psnr", [*similar])], "decibel") if len(similar) > 1 else None,  # one is at the top
        "of synthetic images and the real ones they were made from",
    )
    made = [metrics for metrics in run.history if any(map(_of_synthesis, metrics.reported))]
    found = {key for metrics in made for key in metrics.reported}
    keys = [key for name in SYNTHESIS for key in sorted(found) if key.endswith(f".{name}")]
    rows = [[f"round {metrics.round}", *(text_of(metrics.reported.get(key)) for key in keys)] for metrics in made]
    heads = ["a synthesis: means over its images", *(SYNTHESIS[key.rpartition(".")[2]] for key in keys)]
    page.section(
        "Synthetic images", image_pairs(run), chart and f'<div class="charts">{chart}</div>',
        table(heads, rows, numbers=tuple(range(1, len(heads)))) if rows else "", _image_measures(run),
    )  # fmt: skip


def _of_synthesis(key: str) -> bool:
    """Whether a part reports this of a synthesis; other parts, too, have a PSNR."""
    return key.rpartition(".")[2] in SYNTHESIS.keys() - {"psnr"}


def _image_measures(run: Run) -> str:
    """Return the table of measures.json: a row per measure, a column per part that shares images and for real ones."""
    found = {each["name"]: each for each in run.json("measures.json") or []}
    if not found:
        return ""
    subjects = dict.fromkeys(name.partition(".")[0] for name in found)
    heads = [f"features of {run.settings['model']}"]
    heads += ["training images" if subject == TRAINING else f"shared by {subject}" for subject in subjects]
    rows = [
        [escape(about), *(text_of(found.get(f"{subject}.{key}", {}).get("value")) for subject in subjects)]
        for key, about in IMAGE_MEASURES.items()
    ]
    notes = "; ".join(dict.fromkeys(each["note"] for each in found.values() if each.get("note")))
    about = f"{notes}. By the final model's own features; FID would take Inception's, which are not here."
    return f"<h3>Beside held-out images</h3>{table(heads, rows, tuple(range(1, len(heads))))}<p>{escape(about)}</p>"


def _privacy(page: Page, run: Run) -> None:
    rows = figure_rows(run.json("privacy.json"))
    if (similar := run.summary.get("psnr")) is not None and not any(name.endswith("psnr") for name, _, _ in rows):
        rows.insert(0, ("PSNR", f"{similar:.2f} dB", "similarity to the real images, on average; it bounds nothing"))
    if rows:
        caution = "<p>Figures of this run. None of them is a guarantee unless its note says so.</p>"
        cells = [[f"{named(name)}<small>{escape(note)}</small>", escape(value)] for name, value, note in rows]
        page.section("Privacy", caution, table(["", ""], cells, numbers=(1,)))


def named(key: str) -> str:
    """Return a figure's name for people, in HTML; its short one appears under the pointer."""
    return f'<span title="{escape(key)}">{escape(figure_name(key))}</span>'


def figure_rows(content: Any, prefix: str = "") -> list[tuple[str, str, str]]:
    """Return name, value and note of all that privacy.json holds: a list of figures, or values under nested names."""
    rows = []
    if isinstance(content, dict) and "value" in content:
        interval = content.get("interval")
        value = text_of(content["value"]) + (f" ({text_of(interval[0])} to {text_of(interval[1])})" if interval else "")
        rows.append((f"{prefix}{content.get('name', '')}".rstrip(". "), value, str(content.get("note") or "")))
    elif isinstance(content, dict):
        for key, value in content.items():
            rows += figure_rows(value, f"{prefix}{key}.")
    elif isinstance(content, list) and any(isinstance(item, dict) for item in content):
        for item in content:
            rows += figure_rows(item, prefix)
    elif content is not None:
        rows.append((prefix.rstrip("."), text_of(content), ""))
    return rows


def _features(page: Page, run: Run) -> None:
    points = run.features()
    scatter = specs.scatter(points, run.facts["classes"]) if points else None
    chart = page.chart("t-SNE of features", scatter, "one map, by kind")
    rows = [
        [escape(kind), f"{apart['intra']:.2f}", f"{apart['inter']:.2f}"]
        for kind, apart in run.summary.get("tsne", {}).items()
    ]
    heads = ["mean distance in the map", "within a class", "between classes"]
    page.section("Features", chart, table(heads, rows, numbers=(1, 2)) if rows else "")


def _generator(page: Page, run: Run) -> None:
    """Add what a generator's part reports as `generator.NAME`."""
    keys = sorted({key for metrics in run.history for key in metrics.reported if key.startswith("generator.")})
    apart = [
        specs.curve(
            GENERATOR[name],
            [
                *((0, value) for _, value in _reported(run, f"generator.untrained_{name}")),
                *_reported(run, f"generator.{name}"),
            ],
        )
        for name in ("intra", "inter")
    ]
    charts = [page.chart("Distances of generated features", specs.lines(apart), "round 0: untrained")]
    for key in keys:
        name = key.removeprefix("generator.")
        if not name.endswith(("intra", "inter")):
            curve = specs.curve(key, [*_reported(run, key)])
            charts.append(page.chart(GENERATOR.get(name, name), specs.lines([curve])))
    page.section("Generator", f'<div class="charts">{"".join(charts)}</div>' if keys else "")


def _further(page: Page, run: Run) -> None:
    """Add what else the parts report, a small chart each."""
    keys = {key for metrics in run.history for key, value in metrics.reported.items() if isinstance(value, int | float)}
    similar = {key for key in keys if key == "psnr" or key.endswith(".psnr")}
    shown = {"shared_bytes"} | ({"psnr"} if len(similar) > 2 else similar)  # in other sections, unless several differ
    charts, once = [], []
    for key in sorted(key for key in keys - shown if not (key.startswith("generator.") or _of_synthesis(key))):
        points = _reported(run, key)
        if len(points) == 1:
            ((t, value),) = points
            once.append([named(key), text_of(value), f"round {t}"])
        elif points:
            charts.append(page.chart(figure_name(key), specs.lines([specs.curve(key, [*points])])))
    page.section(
        "Further figures", f'<div class="charts small">{"".join(charts)}</div>' if charts else "",
        table(["figure", "value", "reported in"], once, numbers=(1,)) if once else "",
    )  # fmt: skip


def _time(page: Page, run: Run) -> None:
    history = run.history
    if not history:
        return
    names = list(dict.fromkeys(name for metrics in history for name in metrics.phases))
    phases = {name: [metrics.phases.get(name, 0.0) for metrics in history] for name in names}
    total = sum(metrics.seconds for metrics in history)
    rows = [
        [escape(name), f"{sum(each):,.2f} s", f"{100 * sum(each) / max(total, 1e-9):.1f} %", f"{max(each):.3f} s"]
        for name, each in phases.items()
    ]
    if "setup_seconds" in run.summary:
        rows.append(["before the first round", f"{run.summary['setup_seconds']:,.2f} s", "", ""])
    chart = page.chart("Time of a round by phase", specs.bars(history, phases, "seconds"))
    times = table(["phase", "in all", "of the rounds", "longest"], rows, numbers=(1, 2, 3))
    if work := run.summary.get("gflops_per_client_round"):
        counted = [[escape(name), f"{value:.4g}"] for name, value in work.items()]
        times = f"<div>{times}<br>{table(['a client, per round', 'GFLOPs'], counted, numbers=(1,))}</div>"
    strip, note = specs.strip(run.timeline(), names), ""
    if strip:
        actors = f"{strip['actors']:,} actor{'s' * (strip['actors'] > 1)}"
        note = f"{actors}, busy {100 * strip['busy']:.0f} % of the time in rounds"
    page.section(
        "Time", f'<div class="charts">{chart}{times}</div>', page.chart("Actors at work", strip, note, wide=True)
    )


def _traffic(page: Page, run: Run) -> None:
    sent: dict[str, list[float]] = {
        "by clients": [metrics.bytes_up for metrics in run.history],
        "to clients": [metrics.bytes_down for metrics in run.history],
    }
    chart = page.chart("Sent in a round", specs.bars(run.history, sent, "bytes"))
    note = "<p>What the method sends between clients and server: models and what its parts add, not Ray's traffic.</p>"
    if shared := _reported(run, "shared_bytes"):
        note += f"<p>The shared dataset takes {bytes_text(shared[-1][1])} of the object store.</p>"
    page.section("Traffic", note if chart else "", chart)


def _events(page: Page, run: Run) -> None:
    failed: dict[str, list[float]] = {
        "failures": [metrics.failures for metrics in run.history],
        "retries": [metrics.retries for metrics in run.history],
        "skipped": [metrics.skipped for metrics in run.history],
    }
    chart = page.chart("Failures in a round", specs.bars(run.history, failed, "count"))
    events = run.lines("events.jsonl")
    rows = []
    for event in events[-EVENTS:]:
        details = {k: v for k, v in event.items() if k not in ("time", "event", "text", "round", "reason")}
        text = " ".join(filter(None, [event.get("text") or event.get("reason") or "", text_of(details)]))
        rows.append([escape(event["event"].replace("_", " ")), text_of(event.get("round")), escape(text)])
    if not rows and not chart:
        page.section("Events", "<p>Nothing failed, and nothing else happened.</p>")
        return
    by_kind = Counter(event["event"].replace("_", " ") for event in events)
    counts = ", ".join(f"{count:,} × {kind}" for kind, count in by_kind.most_common())
    left = f" The last {EVENTS} are shown; events.jsonl has all." if len(events) > EVENTS else ""
    page.section(
        "Events", f"<p>{escape(counts)}.{left}</p>" if rows else "", chart,
        table(["event", "round", "what"], rows) if rows else "",
    )  # fmt: skip


def _configuration(page: Page, run: Run) -> None:
    defaults = {f.name: f.default for f in dataclasses.fields(RunConfig)}
    own = {key: value for key, value in run.settings.items() if "." not in key and value is not None}
    changed = {key for key, value in own.items() if key in defaults and value != defaults[key]}
    content = [
        "<p>What differs from the defaults, and the method's own settings.</p>",
        settings_list({key: own[key] for key in own if key in changed}),
    ]
    for part in dict.fromkeys(key.partition(".")[0] for key in run.settings if "." in key):
        values = {k.partition(".")[2]: v for k, v in run.settings.items() if k.startswith(f"{part}.")}
        content += [f"<h3>{escape(part)}</h3>", settings_list(values)]
    every = f"<details><summary>Every setting as it was resolved</summary>{settings_list(own, changed)}</details>"
    page.section("Configuration", *content, every)


def _place(page: Page, run: Run) -> None:
    """Add the hashes, and what config.json records beside the settings."""
    elsewhere = ("format", "settings", "classes")
    hashes = {key: value for key, value in run.summary.items() if key.endswith("_sha256") and value}
    facts = {key: value for key, value in run.facts.items() if key not in elsewhere and value is not None}
    texts = {key: text_of(value).replace("\n", "; ") for key, value in (hashes | facts).items()}
    rows = [[escape(key), f"<code>{escape(text)}</code>"] for key, text in texts.items()]
    page.section("Where it ran", table(["", ""], rows))
