"""The table of many runs: a row's mean and standard deviation over its seeds, beside what the papers report."""

import csv
import io
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass

from raysim.experiments.grid import Grid, Job, finished
from raysim.observe import papers
from raysim.storage.run_directory import write_atomically


@dataclass(frozen=True)
class Column:
    """A figure of a run, from its summary.json if it is there."""

    key: str
    heading: str
    read: Callable[[dict], float | None]
    digits: int = 2


def _at(key: str, factor: float = 1.0):
    return lambda summary: None if summary.get(key) is None else factor * summary[key]


def _attack(figure: str, on_model: bool):
    """Of the attack on the model, or the highest of what was found in what the parts share."""

    def read(summary: dict) -> float | None:
        told = {name.rpartition("."): value for name, value in (summary.get("privacy") or {}).items()}
        found = [v for (of, _, what), v in told.items() if what == figure and (of == "model") == on_model]
        return max((value for value in found if value is not None), default=None)

    return read


COLUMNS = (
    Column("final_accuracy", "final %", _at("final_accuracy", 100)),
    Column("late_accuracy", "last quarter %", _at("late_accuracy", 100)),
    Column("best_accuracy", "best %", _at("best_accuracy", 100)),
    Column("seconds", "seconds", _at("seconds"), 0),
    Column("megabytes_up", "MB up", _at("bytes_up", 1e-6), 1),
    Column("megabytes_down", "MB down", _at("bytes_down", 1e-6), 1),
    Column("psnr", "PSNR dB", _at("psnr")),
    Column("psnr_nearest", "PSNR to nearest", _attack("psnr_nearest", False)),
    Column("shared_auc", "attack on shared data: AUC", _attack("auc", False), 3),
    Column("shared_tpr", "TPR at 1 % FPR", _attack("tpr_at_1%_fpr", False), 3),
    Column("model_auc", "attack on model: AUC", _attack("auc", True), 3),
    Column("model_tpr", "TPR at 1 % FPR", _attack("tpr_at_1%_fpr", True), 3),
    Column("epsilon", "certified ε", _attack("epsilon", False)),
)
PAPER_AFTER = {"best_accuracy": ("paper %", "accuracy"), "psnr": ("paper's PSNR", "psnr")}


def write_table(grid: Grid, failed: dict[Job, str]) -> str:
    """table.md, table.csv and table.json in the grid's folder; gives the first."""
    rows = [_row(row, [job for job in grid.jobs if job.row == row]) for row in dict.fromkeys(j.row for j in grid.jobs)]
    content = {"rows": rows, "failed": {job.title: error for job, error in failed.items()}}
    markdown = _markdown(rows, failed)
    write_atomically(grid.folder / "table.md", markdown.encode())
    write_atomically(grid.folder / "table.csv", _csv(rows).encode())
    write_atomically(grid.folder / "table.json", json.dumps(content, indent=2).encode() + b"\n")
    return markdown


def _row(name: str, jobs: list[Job]) -> dict:
    """A row as plain values; only what is finished counts."""
    done = [(job, json.loads((job.folder / "summary.json").read_text())) for job in jobs if finished(job)]
    settings = jobs[0].config.settings()
    row = {
        "row": name, "method": settings["method"], "dataset": settings["dataset"],
        "partition": papers.partition_name(settings), "runs": [job.folder.name for job, _ in done],
        "seeds": [job.config.seed for job, _ in done], "missing": len(jobs) - len(done),
    }  # fmt: skip
    for column in COLUMNS:
        values = [column.read(summary) for _, summary in done]
        row[column.key] = _spread([value for value in values if value is not None])
    reported = papers.find(settings) if jobs[0].paper is None else [papers.Figure("this ablation", jobs[0].paper)]
    row["paper"] = [asdict(figure) for figure in reported]
    return row


def _spread(values: list[float]) -> dict | None:
    """Mean and sample standard deviation; the latter of two values or more."""
    if not values:
        return None
    return {"mean": statistics.mean(values), "std": statistics.stdev(values) if len(values) > 1 else None}


def _shown(spread: dict | None, digits: int) -> str:
    if spread is None:
        return "–"
    text = f"{spread['mean']:.{digits}f}"
    return text if spread["std"] is None else f"{text} ± {spread['std']:.{digits}f}"


def _reported(row: dict, key: str) -> str:
    """What the papers say of it, each by name where there are several."""
    figures = [papers.Figure(**figure) for figure in row["paper"]]
    texts = [str(f) if key == "accuracy" else f"{f.psnr:.2f}" for f in figures if key == "accuracy" or f.psnr]
    return "; ".join(texts) or "–"


def _markdown(rows: list[dict], failed: dict[Job, str]) -> str:
    """A column nobody has a figure for is left out."""
    headings, cells = ["run", "seeds"], [[row["row"], " ".join(map(str, row["seeds"])) or "–"] for row in rows]
    for column in COLUMNS:
        wanted = [(column.heading, [_shown(row[column.key], column.digits) for row in rows])]
        if column.key in PAPER_AFTER:
            heading, key = PAPER_AFTER[column.key]
            wanted.append((heading, [_reported(row, key) for row in rows]))
        for heading, texts in wanted:
            if any(text != "–" for text in texts):
                headings.append(heading)
                for line, text in zip(cells, texts, strict=True):
                    line.append(text)
    lines = [headings, ["---"] * len(headings), *cells]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    text += "\nMean ± sample standard deviation over the seeds. Seconds are of runs that shared the machine.\n"
    for job, error in failed.items():
        text += f"\nFailed: {job.title}: {error}\n"
    return text


def _csv(rows: list[dict]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    figures = [f"{column.key}_{what}" for column in COLUMNS for what in ("mean", "std")]
    writer.writerow(["row", "dataset", "partition", "method", "seeds", *figures, "paper"])
    for row in rows:
        values = [(row[c.key] or {}).get(what, "") for c in COLUMNS for what in ("mean", "std")]
        own = [row["row"], row["dataset"], row["partition"], row["method"], " ".join(map(str, row["seeds"]))]
        writer.writerow([*own, *("" if v is None else v for v in values), _reported(row, "accuracy").replace("–", "")])
    return out.getvalue()
