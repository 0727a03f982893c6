"""report.html: one self-contained page about a run, made from its run directory alone."""

import base64
import html
import io
import json
from pathlib import Path

from raysim.engine.record import write_atomically
from raysim.errors import InputError

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; } td { padding: .1rem 1rem .1rem 0; vertical-align: top; overflow-wrap: anywhere; }
td:first-child { color: GrayText; white-space: nowrap; }
figure { margin: 1rem 0; background: white; border-radius: 6px; padding: .5rem; }
figure svg, figure img { display: block; width: 100%; height: auto; }
"""


def write_report(run: str | Path) -> Path:
    """Write (again) the report of a run directory; gives its path."""
    run = Path(run)
    if not (run / "config.json").exists():
        raise InputError(f"'{run}' is not a run directory: it has no config.json; give the path a run printed")
    facts = json.loads((run / "config.json").read_text())
    settings = facts["settings"]
    history = _lines(run / "metrics.jsonl")
    summary = json.loads((run / "summary.json").read_text()) if (run / "summary.json").exists() else None
    title = f"{settings['method']} on {settings['dataset']}"
    parts = [f"<h1>{html.escape(title)}</h1>"]
    if summary is None:
        parts.append(f"<p>Not finished: {len(history)} of {settings['rounds']} rounds.</p>")
    else:
        parts += ["<h2>Result</h2>", _table({k: v for k, v in summary.items() if k != "privacy"})]
    if history:
        parts += ["<h2>Accuracy and loss</h2>", f"<figure>{_curves(history)}</figure>"]
    if (run / "labels.png").exists():
        parts += ["<h2>Labels over clients</h2>", _figure(run / "labels.png", "samples per client and class")]
    if (run / "synthetic.png").exists():
        parts += ["<h2>Synthetic images beside real ones</h2>"]
        parts += [_figure(run / "synthetic.png", "pairs of real and synthetic images, a row per class")]
    if (run / "features.png").exists():
        parts += ["<h2>Features by t-SNE</h2>", _figure(run / "features.png", "a panel per kind of feature")]
    if (run / "privacy.json").exists():
        figures = json.loads((run / "privacy.json").read_text())
        parts += ["<h2>Privacy</h2>", _table({figure["name"]: _figure_text(figure) for figure in figures})]
    if events := _lines(run / "events.jsonl"):
        parts += ["<h2>Events</h2>", *(f"<p>{html.escape(_told(event))}</p>" for event in events)]
    parts += ["<h2>Settings</h2>", _table({k: v for k, v in settings.items() if v is not None})]
    parts += ["<h2>Where it ran</h2>", _table({k: v for k, v in facts.items() if k != "settings"})]
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>{''.join(parts)}</body></html>\n"
    )
    write_atomically(run / "report.html", page.encode())
    return run / "report.html"


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _figure(path: Path, alt: str) -> str:
    image = base64.b64encode(path.read_bytes()).decode()
    return f'<figure><img alt="{alt}" src="data:image/png;base64,{image}"></figure>'


def _told(event: dict) -> str:
    details = {k: v for k, v in event.items() if k not in ("time", "event", "text")}
    return f"{event['event']}: {event.get('text', '')}{details or ''}"


def _figure_text(figure: dict) -> str:
    """A line of privacy.json: value, interval, note."""
    numbers = [] if figure["value"] is None else [figure["value"], *(figure["interval"] or ())]
    value, *interval = [f"{number:.4g}" for number in numbers] or [""]
    return f"{value} {f'[{interval[0]}, {interval[1]}]' if interval else ''} {figure['note']}".strip()


def _table(values: dict) -> str:
    rows = (f"<tr><td>{html.escape(str(k))}</td><td>{html.escape(str(v))}</td></tr>" for k, v in values.items())
    return f"<table>{''.join(rows)}</table>"


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _curves(history: list[dict]) -> str:
    """Accuracy and losses over rounds as inline SVG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    evaluated = [line for line in history if line["accuracy"] is not None]
    rounds = [line["round"] for line in evaluated]
    left.plot(rounds, [100 * line["accuracy"] for line in evaluated])
    left.set(xlabel="round", ylabel="test accuracy (%)")
    right.plot(rounds, [_number(line["loss"]) for line in evaluated], label="test")
    right.plot([line["round"] for line in history], [_number(line["train_loss"]) for line in history], label="train")
    right.set(xlabel="round", ylabel="cross-entropy")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    text = io.StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue()[text.getvalue().index("<svg") :]
