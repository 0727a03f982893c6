"""The table of a grid: mean and standard deviation over the seeds of each row, beside the papers' figures."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from raysim import papers
from raysim.experiments.grid import Grid, PlannedRun
from raysim.storage.files import to_json, write_atomically
from raysim.storage.formats import read_summary
from raysim.tables import NONE, Table

Summary = dict[str, Any]  # summary.json
Row = dict[str, Any]  # of table.json


@dataclass(frozen=True)
class Column:
    """A column of the table; `read` finds its figure in a run's summary."""

    key: str
    heading: str
    read: Callable[[Summary], float | None]
    digits: int = 2
    printed: bool = True  # in Markdown; table.csv and table.json have all of them


def _at(key: str, factor: float = 1.0) -> Callable[[Summary], float | None]:
    """Read the summary's value at a key."""
    return lambda summary: None if summary.get(key) is None else factor * summary[key]


def _early_end(summary: Summary) -> float | None:
    """The rounds of a run that was ended before its last."""
    return summary["rounds"] if summary.get("stopped") else None


def _privacy(figure: str, on_model: bool) -> Callable[[Summary], float | None]:
    """Read a privacy figure: of the model, or the highest one of the data that parts share."""

    def read(summary: Summary) -> float | None:
        found = []
        for name, value in (summary.get("privacy") or {}).items():
            subject, _, what = name.rpartition(".")
            if what == figure and (subject == "model") == on_model and value is not None:
                found.append(value)
        return max(found, default=None)

    return read


def _measure(figure: str) -> Callable[[Summary], float | None]:
    """Read a measure of shared images, of the first part that shares any; training images come last in the summary."""

    def read(summary: Summary) -> float | None:
        found = {name: value for name, value in (summary.get("measures") or {}).items() if value is not None}
        return next((value for name, value in found.items() if name.partition(".")[2] == figure), None)

    return read


def _gflops(summary: Summary) -> float | None:
    return sum((summary.get("gflops_per_client_round") or {}).values()) or None


def _generator_map(figure: str) -> Callable[[Summary], float | None]:
    """Read a distance in the map of generated features (FedPA's table V)."""
    return lambda summary: next((m[figure] for m in (summary.get("generator_map") or {}).values()), None)


COLUMNS = (
    Column("final_accuracy", "final %", _at("final_accuracy", 100)),
    Column("late_accuracy", "last quarter %", _at("late_accuracy", 100)),
    Column("best_accuracy", "best %", _at("best_accuracy", 100)),
    Column("ended_after", "ended after rounds", _early_end, 0),
    Column("best_five_accuracy", "five best %", _at("best_five_accuracy", 100)),
    Column("seconds", "seconds", _at("seconds"), 0),
    Column("megabytes_up", "MB up", _at("bytes_up", 1e-6), 1),
    Column("megabytes_down", "MB down", _at("bytes_down", 1e-6), 1),
    Column("gflops", "GFLOPs", _gflops),
    Column("psnr", "PSNR dB", _at("psnr")),
    Column("psnr_nearest", "PSNR to nearest", _privacy("psnr_nearest", False)),
    Column("feature_fd", "feature FD", _measure("fd")),
    Column("feature_kd", "feature KD", _measure("kd"), printed=False),
    Column("precision", "precision", _measure("precision"), 3, printed=False),
    Column("recall", "recall", _measure("recall"), 3, printed=False),
    Column("density", "density", _measure("density"), 3, printed=False),
    Column("coverage", "coverage", _measure("coverage"), 3),
    Column("shared_auc", "attack on shared data: AUC", _privacy("auc", False), 3),
    Column("shared_tpr", "attack on shared data: TPR at 1 % FPR", _privacy("tpr_at_1%_fpr", False), 3),
    Column("model_auc", "attack on model: AUC", _privacy("auc", True), 3),
    Column("model_tpr", "attack on model: TPR at 1 % FPR", _privacy("tpr_at_1%_fpr", True), 3),
    Column("epsilon", "certified ε", _privacy("epsilon", False)),
    Column("generator_intra", "map of generated features: within a class", _generator_map("intra"), 1),
    Column("generator_inter", "between classes", _generator_map("inter"), 1),
)
# Key of a column -> heading and attribute of the papers' figure in the column after it.
PAPER_AFTER = {
    "best_five_accuracy": ("paper %", "accuracy"), "gflops": ("paper's GFLOPs", "gflops"),
    "psnr": ("paper's PSNR", "psnr"),
}  # fmt: skip


def write_table(grid: Grid, failed: Mapping[PlannedRun, str]) -> str:
    """Write table.md, table.csv and table.json into the grid's folder, and return the text of the first.

    `failed` has the reason for every run that failed.
    """
    rows = _rows(grid)
    content = {"rows": rows, "failed": {run.title: error for run, error in failed.items()}}
    table = _table(rows)
    markdown = f"{table.markdown()}\n{_notes(rows, failed)}"
    write_atomically(grid.folder / "table.md", markdown.encode())
    write_atomically(grid.folder / "table.csv", f"{table.csv()}\n".encode())
    write_atomically(grid.folder / "table.json", to_json(content))
    return markdown


def _rows(grid: Grid) -> list[Row]:
    """The rows in the order of the runs; after the last of those that a paper tunes, the best of them."""
    runs = {row: [run for run in grid.runs if run.row == row] for row in dict.fromkeys(run.row for run in grid.runs)}
    rows: list[Row] = []
    tuned: dict[str, list[Row]] = {}
    for name, members in runs.items():
        rows.append(_row(name, members))
        if (best_of := members[0].best_of) is None:
            continue
        tuned.setdefault(best_of, []).append(rows[-1])
        if len(tuned[best_of]) == len({run.row for run in grid.runs if run.best_of == best_of}):
            measured = [row for row in tuned[best_of] if row["final_accuracy"]]
            best = max(measured or tuned[best_of][:1], key=lambda row: (row["final_accuracy"] or {"mean": 0})["mean"])
            rows.append(best | {"row": f"{best_of} (best of {len(measured)})"})
            for row in tuned[best_of]:
                row["paper"] = []  # which is the best one's
    return rows


def _row(name: str, runs: list[PlannedRun]) -> Row:
    """A row as plain values, from those of its runs that are finished."""
    done = [(run, read_summary(run.folder)) for run in runs if run.finished]
    settings = runs[0].config.settings()
    row: Row = {
        "row": name, "method": settings["method"], "dataset": settings["dataset"],
        "partition": papers.partition_name(settings), "runs": [run.folder.name for run, _ in done],
        "seeds": [run.config.seed for run, _ in done], "missing": len(runs) - len(done),
    }  # fmt: skip
    for column in COLUMNS:
        values = [column.read(summary) for _, summary in done]
        row[column.key] = _spread([value for value in values if value is not None])
    row["paper"] = [asdict(figure) for figure in runs[0].paper]
    return row


def _spread(values: list[float]) -> dict[str, float | None] | None:
    """Mean and sample standard deviation, the latter of two values or more; None where there are no values."""
    if not values:
        return None
    return {"mean": statistics.mean(values), "std": statistics.stdev(values) if len(values) > 1 else None}


def _shown(spread: dict[str, Any] | None, digits: int) -> str:
    """A spread in a cell."""
    if spread is None:
        return NONE
    text = f"{spread['mean']:.{digits}f}"
    return text if spread["std"] is None else f"{text} ± {spread['std']:.{digits}f}"


def _reported(row: Row, key: str) -> str:
    """The papers' figures for the row: accuracies with the papers' names, or values of PSNR or GFLOPs."""
    figures = [papers.Figure(**figure) for figure in row["paper"]]
    if key == "accuracy":
        return "; ".join(map(str, figures)) or NONE
    return "; ".join(f"{value:.2f}" for f in figures if (value := getattr(f, key)) is not None) or NONE


def _differences(row: Row) -> str:
    """Ours less the papers' figures, in points, each by the measure that the paper takes."""
    ours = [(row[figure["measure"]], figure["accuracy"]) for figure in row["paper"]]
    return "; ".join(f"{spread['mean'] - paper:+.2f}" for spread, paper in ours if spread) or NONE


def _table(rows: list[Row]) -> Table:
    """Return the rows as a table: for people without columns that are empty in every row, for programs with all."""
    heads, cells = ["run", "seeds"], [[row["row"], " ".join(map(str, row["seeds"])) or NONE] for row in rows]
    for column in (column for column in COLUMNS if column.printed):
        wanted = [(column.heading, [_shown(row[column.key], column.digits) for row in rows])]
        if column.key in PAPER_AFTER:
            heading, key = PAPER_AFTER[column.key]
            wanted.append((heading, [_reported(row, key) for row in rows]))
            if key == "accuracy":
                wanted.append(("difference", list(map(_differences, rows))))
        for heading, texts in wanted:
            if any(text != NONE for text in texts):
                heads.append(heading)
                for line, text in zip(cells, texts, strict=True):
                    line.append(text)
    return Table(heads, cells, list(map(_record, rows)), texts=2)


def _record(row: Row) -> dict[str, Any]:
    """Return a row of table.csv."""
    record = {key: row[key] for key in ("row", "dataset", "partition", "method")}
    record["seeds"] = " ".join(map(str, row["seeds"]))
    for column in COLUMNS:
        record |= {f"{column.key}_{what}": (row[column.key] or {}).get(what) for what in ("mean", "std")}
    reported = {"paper": _reported(row, "accuracy"), "difference": _differences(row)}
    return record | {key: text.replace(NONE, "") for key, text in reported.items()}


def _notes(rows: list[Row], failed: Mapping[PlannedRun, str]) -> str:
    """Return what is said below the table."""
    text = "\nMean ± sample standard deviation over the seeds. Seconds are of runs that shared the machine.\n"
    if any(row["feature_fd"] for row in rows):
        text += "Feature FD and coverage are by the features of each run's own model, not Inception's (FID).\n"
    return text + "".join(f"\nFailed: {run.title}: {error}\n" for run, error in failed.items())
