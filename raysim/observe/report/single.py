"""The report of one run, section by section. Shows what the run directory holds, and nothing it does not."""

import dataclasses
from collections import Counter
from pathlib import Path

from raysim.config import RunConfig
from raysim.observe import papers
from raysim.observe.progress import duration
from raysim.observe.report import specs
from raysim.observe.report.comparison import departures
from raysim.observe.report.page import Page, bytes_text, escape, settings_list, table, text_of, tiles
from raysim.observe.report.pairs import image_pairs
from raysim.storage.run_reader import Run, read_run

# What a line of metrics.jsonl always has; the rest is what the method's parts tell.
STANDARD = {
    "round", "accuracy", "loss", "train_loss", "terms", "clients", "seconds", "phases", "gflops", "bytes_up",
    "bytes_down", "shared_bytes", "failures", "retries", "skipped",
}  # fmt: skip
EVENTS = 200  # in the table
GENERATOR = {
    "fid": "Fidelity loss", "div": "Diversity loss", "ad": "Distance to prototypes", "intra": "within a class",
    "inter": "between classes",
}  # fmt: skip


def write_report(path: str | Path, out: str | Path | None = None) -> Path:
    """Write (again) the report of a run directory, by default its report.html; gives its path."""
    run = read_run(path)
    s = run.settings
    page = Page(run.title, f"{run.setting_text}, {s['model']}, {s['rounds']:,} rounds, seed {s['seed']}")
    if not run.summary:
        page.head.append(f'<p class="unfinished">Not finished: {len(run.history)} of {s["rounds"]} rounds.</p>')
    page.head.append(tiles(_key_figures(run)))
    for add in (
        _accuracy, _terms, _clients, _synthetic, _privacy, _features, _generator, _further, _time, _traffic, _events,
        _configuration, _place,
    ):  # fmt: skip
        add(page, run)
    return page.write(Path(out) if out else run.path / "report.html")


def _key_figures(run: Run) -> list[tuple[str, str, str]]:
    history, summary = run.history, run.summary
    figures = []
    if run.evaluated:
        last, best = run.evaluated[-1], max(run.evaluated, key=lambda line: line["accuracy"])
        figures.append(("Accuracy", f"{100 * last['accuracy']:.2f} %", f"after round {last['round']}"))
        figures.append(("Best accuracy", f"{100 * best['accuracy']:.2f} %", f"in round {best['round']}"))
    for figure in papers.find(run.settings):
        spread = f"± {figure.std:.2f}, " if figure.std is not None else ""
        figures.append(("A paper's", f"{figure.accuracy:.2f} %", f"{spread}{figure.paper}"))
    if history:
        seconds = summary.get("seconds") or sum(line["seconds"] for line in history)
        each = sum(line["seconds"] for line in history) / len(history)
        figures.append(("Time", duration(seconds), f"{each:.2f} s a round"))
    if (similar := [line["psnr"] for line in history if line.get("psnr") is not None]):
        figures.append(("PSNR", f"{similar[-1]:.2f} dB", "synthetic beside real"))
    if gflops := summary.get("gflops_per_client_round"):
        figures.append(("GFLOPs", f"{sum(gflops.values()):.3g}", "per client and round"))
    if history:
        up, down = (sum(line[key] for line in history) for key in ("bytes_up", "bytes_down"))
        figures.append(("Sent by clients", bytes_text(up), f"to them {bytes_text(down)}"))
        failures, skipped = (sum(line.get(key, 0) for line in history) for key in ("failures", "skipped"))
        said = f"{skipped:,} clients skipped" if skipped else "no client skipped"
        figures.append(("Failures", f"{failures:,}", said))
    return figures


def _curves(run: Run, key: str, lines: list[dict] | None = None, name: str = "", factor: float = 1.0) -> dict:
    points = [(line["round"], line.get(key)) for line in (run.history if lines is None else lines)]
    return specs.curve(name or key, points, factor)


def _accuracy(page: Page, run: Run) -> None:
    accuracy = specs.lines([_curves(run, "accuracy", run.evaluated, factor=100)], "percent")
    losses = [_curves(run, "loss", run.evaluated, "test"), _curves(run, "train_loss", name="local training")]
    whose = "of the clients' own models" if run.settings.get("evaluation") == "clients" else "of the global model"
    charts = page.chart("Test accuracy", accuracy, whose) + page.chart("Cross-entropy", specs.lines(losses))
    different = departures(run.settings) if papers.find(run.settings) else []
    said = f"Differences from the nearest preset of a paper: {escape(', '.join(different))}." if different else ""
    page.section("Accuracy and loss", charts and f'<p>{said}</p><div class="charts">{charts}</div>')


def _terms(page: Page, run: Run) -> None:
    names = sorted({name for line in run.history for name in line["terms"]})
    charts = []
    for name in names:
        points = [(line["round"], line["terms"].get(name)) for line in run.history]
        charts.append(page.chart(name, specs.lines([specs.curve(name, points)])))
    if charts:
        said = "<p>The clients' mean of each term that the method adds to the cross-entropy, as it is added.</p>"
        page.section("Loss terms", said, f'<div class="charts small">{"".join(charts)}</div>')


def _clients(page: Page, run: Run) -> None:
    if (counts := run.labels()) is None:
        return
    names = run.facts.get("classes") or [str(i) for i in range(counts.shape[1])]
    sizes = counts.sum(axis=1)
    said = (
        f"<p>{len(sizes):,} clients with {sizes.min():,} to {sizes.max():,} samples, {sizes.sum():,} together; "
        f"a client has {(counts > 0).sum(axis=1).mean():.1f} of {counts.shape[1]:,} classes on average.</p>"
    )
    note = "bars: a client's size; colour: samples of a class, logarithmic"
    page.section("Clients' data", said, page.chart("Labels over clients", specs.heat(counts, names), note))


def _synthetic(page: Page, run: Run) -> None:
    similar = specs.lines([_curves(run, "psnr", [line for line in run.history if "psnr" in line])], "decibel")
    chart = page.chart("PSNR over rounds", similar, "of synthetic images and the real ones they were made from")
    if similar and len(similar["series"][0]["x"]) < 2:
        chart = ""  # the figure at the top says it
    page.section("Synthetic images", image_pairs(run), chart and f'<div class="charts">{chart}</div>')


def _privacy(page: Page, run: Run) -> None:
    rows = figure_rows(run.json("privacy.json"))
    if (similar := run.summary.get("psnr")) is not None and not any(name.endswith("psnr") for name, _, _ in rows):
        rows.insert(0, ("PSNR", f"{similar:.2f} dB", "similarity to the real images, on average; it bounds nothing"))
    if rows:
        said = "<p>Figures of this run. None of them is a guarantee unless its note says so.</p>"
        cells = [[escape(name), escape(value), f"<small>{escape(note)}</small>"] for name, value, note in rows]
        page.section("Privacy", said, table(["", "", ""], cells, numbers=(1,)))


def figure_rows(content, prefix: str = "") -> list[tuple[str, str, str]]:
    """Name, value, note of whatever privacy.json holds: a list of such rows, or values under nested names."""
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
    points = run.json("features.json")
    chart = page.chart("t-SNE of features", points and specs.scatter(points, run.facts["classes"]), "one map, by kind")
    rows = [
        [escape(kind), f"{apart['intra']:.2f}", f"{apart['inter']:.2f}"]
        for kind, apart in run.summary.get("tsne", {}).items()
    ]
    heads = ["mean distance in the map", "within a class", "between classes"]
    page.section("Features", chart, table(heads, rows, numbers=(1, 2)) if rows else "")


def _generator(page: Page, run: Run) -> None:
    keys = sorted({key for line in run.history for key in line if key.startswith("generator.")})
    names = {key: key.removeprefix("generator.") for key in keys}
    told = [line for line in run.history if any(key in line for key in keys)]
    apart = []
    for name in ("intra", "inter"):
        before = [(0, line[f"generator.untrained_{name}"]) for line in told if f"generator.untrained_{name}" in line]
        points = [(line["round"], line.get(f"generator.{name}")) for line in told]
        apart.append(specs.curve(GENERATOR[name], before + points))
    charts = [page.chart("Distances of generated features", specs.lines(apart), "round 0: untrained")]
    for key, name in names.items():
        if not name.endswith(("intra", "inter")):
            charts.append(page.chart(GENERATOR.get(name, name), specs.lines([_curves(run, key, told)])))
    page.section("Generator", f'<div class="charts">{"".join(charts)}</div>' if keys else "")


def _further(page: Page, run: Run) -> None:
    """What the parts tell besides, a small chart each."""
    keys = {key for line in run.history for key, value in line.items() if isinstance(value, int | float)}
    similar = {key for key in keys if key == "psnr" or key.endswith(".psnr")}  # drawn with the images, unless several
    keys = sorted(key for key in keys - STANDARD - ({"psnr"} if len(similar) > 2 else similar)
                  if not key.startswith("generator."))  # fmt: skip
    charts, once = [], []
    for key in keys:
        told = [line for line in run.history if line.get(key) is not None]
        if len(told) == 1:
            once.append([escape(key), text_of(told[0][key]), f"round {told[0]['round']}"])
        elif told:
            charts.append(page.chart(key, specs.lines([_curves(run, key, told)])))
    page.section(
        "Further figures", f'<div class="charts small">{"".join(charts)}</div>' if charts else "",
        table(["figure", "value", "told in"], once, numbers=(1,)) if once else "",
    )  # fmt: skip


def _time(page: Page, run: Run) -> None:
    history = run.history
    if not history:
        return
    names = list(dict.fromkeys(name for line in history for name in line["phases"]))
    phases = {name: [line["phases"].get(name, 0.0) for line in history] for name in names}
    total = sum(line["seconds"] for line in history)
    rows = [
        [escape(name), f"{sum(each):,.2f} s", f"{100 * sum(each) / max(total, 1e-9):.1f} %", f"{max(each):.3f} s"]
        for name, each in phases.items()
    ]
    if "setup_seconds" in run.summary:
        rows.append(["before the first round", f"{run.summary['setup_seconds']:,.2f} s", "", ""])
    strip = specs.strip(run.lines("timeline.jsonl"), names)
    crew = f"{strip['actors']:,} actor{'s' * (strip['actors'] > 1)}" if strip else ""
    used = f"{crew}, busy {100 * strip['busy']:.0f} % of the time in rounds" if strip else ""
    chart = page.chart("Time of a round by phase", specs.bars(history, phases, "seconds"))
    times = table(["phase", "in all", "of the rounds", "longest"], rows, numbers=(1, 2, 3))
    if work := run.summary.get("gflops_per_client_round"):
        counted = [[escape(name), f"{value:.4g}"] for name, value in work.items()]
        times = f"<div>{times}<br>{table(['a client, per round', 'GFLOPs'], counted, numbers=(1,))}</div>"
    page.section(
        "Time", f'<div class="charts">{chart}{times}</div>', page.chart("Actors at work", strip, used, wide=True)
    )


def _traffic(page: Page, run: Run) -> None:
    values = {"by clients": [line["bytes_up"] for line in run.history]}
    values["to clients"] = [line["bytes_down"] for line in run.history]
    said = "<p>What the method sends between clients and server: models and what its parts add, not Ray's traffic.</p>"
    chart = page.chart("Sent in a round", specs.bars(run.history, values, "bytes"))
    if held := [line["shared_bytes"] for line in run.history if "shared_bytes" in line]:
        said += f"<p>The shared dataset takes {bytes_text(held[-1])} of the object store.</p>"
    page.section("Traffic", said if chart else "", chart)


def _events(page: Page, run: Run) -> None:
    failed = {"failures": [line["failures"] for line in run.history]}
    failed |= {key: [line.get(key, 0) for line in run.history] for key in ("retries", "skipped")}
    chart = page.chart("Failures in a round", specs.bars(run.history, failed, "count"))
    events = run.lines("events.jsonl")
    rows = []
    for event in events[-EVENTS:]:
        details = {k: v for k, v in event.items() if k not in ("time", "event", "text", "round", "reason")}
        said = " ".join(filter(None, [event.get("text") or event.get("reason") or "", text_of(details)]))
        rows.append([escape(event["event"].replace("_", " ")), text_of(event.get("round")), escape(said)])
    if not rows and not chart:
        page.section("Events", "<p>Nothing failed, and nothing else happened.</p>")
        return
    counted = Counter(event["event"].replace("_", " ") for event in events)
    said = ", ".join(f"{count:,} × {kind}" for kind, count in counted.most_common())
    left = f" The last {EVENTS} are shown; events.jsonl has all." if len(events) > EVENTS else ""
    page.section(
        "Events", f"<p>{escape(said)}.{left}</p>" if rows else "", chart,
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
    hashes = {key: value for key, value in run.summary.items() if key.endswith("_sha256") and value}
    facts = {key: value for key, value in run.facts.items() if key not in ("settings", "classes") and value is not None}
    told = {key: text_of(value).replace("\n", "; ") for key, value in (hashes | facts).items()}
    rows = [[escape(key), f"<code>{escape(text)}</code>"] for key, text in told.items()]
    page.section("Where it ran", table(["", ""], rows))
