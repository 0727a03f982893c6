"""The papers' tables at their own size: keeps what sweeps have measured, and writes the tables that open the results.

    raysim sweep fedpa-table2-mnist-reference --data path/to/data --out runs/table2-mnist
    python -m benchmarks.papers runs/table2-mnist        (as often as wished; runs that have ended are added)

`docs/measured.csv` has a line for each run, so that the runs themselves may be removed. A later run of the same cell
and seed takes the place of the earlier one.
"""

import argparse
import csv
import io
import json
import statistics
from itertools import groupby, pairwise
from pathlib import Path

from benchmarks.report import publish, table
from raysim import papers
from raysim.config import RunConfig, from_record, resolve
from raysim.experiments import grid
from raysim.experiments.grid import PlannedRun

COLUMNS = (
    "paper", "dataset", "partition", "method", "seed", "accuracy", "final_accuracy", "rounds", "seconds",
    "model_sha256", "git",
)  # fmt: skip
CELL, KEY = COLUMNS[:4], COLUMNS[:5]
# By which a run's paper is known, where another paper has a figure for the same data and method.
CLIENTS = {
    "HFMDS-FL table 2": 20,
    "FedPA table II": 20,
    "FedDPMS table 1": 10,
    "SDA-FL table 1": 10,
    "SDA-FL table 6": 6,
}
OWN = " (our synthesis)"  # behind a method whose images are not made by the paper's letter
NARROW = " (narrow GANs)"  # behind SDA-FL with GANs for which a CPU does; the paper does not say how wide its are
Line = dict[str, str]


def lines_of(folder: Path) -> list[Line]:
    """A line for each finished run below the folder that is a row of a table's sweep; others are left out."""
    found, rows = [], planned()
    for path in sorted(folder.glob("**/summary.json")):
        summary, recorded = (json.loads((path.parent / name).read_text()) for name in ("summary.json", "config.json"))
        config = resolve([(str(path), from_record(recorded["settings"], str(path)))])
        if (run := rows.get(what_counts(config))) is None:
            continue
        settings = config.settings()
        for figure in (figure for figure in run.paper if settings["clients"] == CLIENTS[figure.paper]):
            cell = figure.paper, settings["dataset"], papers.partition_name(settings), row_name(run)
            measured = (100 * summary[key] for key in (figure.measure, "final_accuracy"))
            values = *cell, settings["seed"], *(f"{value:.2f}" for value in measured)
            values += summary["rounds"], f"{summary['seconds']:.0f}", summary["model_sha256"], recorded.get("git") or ""
            found.append(dict(zip(COLUMNS, map(str, values), strict=True)))
    return found


def planned() -> dict[str, PlannedRun]:
    """A run of every row of the sweeps whose rows are cells of the papers' tables, by what counts of its settings.

    FedPA's figures come from its authors' code, which departs from its formulas: those are no rows of this table.
    """
    tables = [name for name, sweep in papers.sweeps().items() if sweep.paper is None]
    tables = [name for name in tables if not name.startswith("fedpa") or name.endswith("-reference")]
    runs = [run for name in tables for run in grid.from_words("sweep", [name, "--seeds", "0"]).runs]
    return {what_counts(run.config): run for run in runs}


def what_counts(config: RunConfig) -> str:
    """The settings that make a run the one of a row, as text: all that decide its result but the seed.

    Nor those that a run chooses if it is left to, and then records (auto): they change the last bits only.
    """
    counting = config.identity() | {"rounds": config.rounds, "seed": None, "fuse": None}
    return json.dumps({key: counting[key] for key in sorted(counting) if not key.endswith(".group")}, default=str)


def row_name(run: PlannedRun) -> str:
    """The method of a run, with what tells it from others that have the same figure."""
    settings = run.config.settings()
    name = papers.method_name(settings)
    if run.best_of:
        return run.row.partition(",")[0]  # "fedprox mu=0.1"
    if settings.get("hfmds.match", "kl") != "kl":
        return name + OWN
    return name + NARROW if settings.get("sdafl.width", 64) < 64 else name


def figure_of(paper: str, dataset: str, partition: str, row: str) -> papers.Figure:
    """The paper's figure beside a row, whose first word is the method."""
    return papers.cell(paper, dataset, partition, row.partition(" ")[0])


def with_the_best(lines: list[Line]) -> list[Line]:
    """The lines, with the best of each grid that a paper tunes in place of the whole grid; sorted."""
    grids: dict[tuple[str, ...], dict[str, list[Line]]] = {}
    kept = []
    for line in lines:
        if "=" in line["method"]:
            cell = *(line[key] for key in CELL[:3]), line["method"].partition(" ")[0]
            grids.setdefault(cell, {}).setdefault(line["method"], []).append(line)
        else:
            kept.append(line)
    for (*_, method), points in grids.items():
        best = max(points.values(), key=lambda members: statistics.mean(float(line["accuracy"]) for line in members))
        kept += [line | {"method": f"{method} (best of {len(points)})"} for line in best]
    return merged(kept, [])


def merged(kept: list[Line], new: list[Line]) -> list[Line]:
    """The lines kept and the new ones, of which a later one of the same run wins; sorted."""
    by_run = {tuple(line[key] for key in KEY): line for line in [*kept, *new]}
    return [by_run[key] for key in sorted(by_run)]


def read(path: Path) -> list[Line]:
    """The lines of a CSV file; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(lines: list[Line], path: Path) -> None:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    path.write_text(out.getvalue())


def markdown(lines: list[Line]) -> str:
    """The table: a row for each cell, bold where ours is further from the paper's than its standard deviation."""
    rows = []
    for cell, group in groupby(with_the_best(lines), key=lambda line: tuple(line[key] for key in CELL)):
        members = list(group)
        paper, dataset, partition, method = cell
        figure = figure_of(*cell)
        values = [float(line["accuracy"]) for line in members]
        ours = f"{statistics.mean(values):.2f}"
        if len(values) > 1:
            ours += f" ± {statistics.stdev(values):.2f}"
        spread = "" if figure.std is None else f" ± {figure.std:.2f}"
        apart = statistics.mean(values) - figure.accuracy
        difference = f"**{apart:+.2f}**" if figure.std is not None and abs(apart) > figure.std else f"{apart:+.2f}"
        seeds = ", ".join(line["seed"] for line in members)
        rows.append(
            [paper, f"{dataset}, {partition}", method, f"{figure.accuracy:.2f}{spread}", ours, difference, seeds]
        )
    return table(["paper", "column", "method", "paper %", "ours %", "difference", "seeds"], rows)


def ordering(lines: list[Line]) -> str:
    """Whether each paper's order is ours: neighbours in it, by the differences of runs of the same seed.

    Runs of one seed have the same clients and cohorts, so differences vary less than the accuracies themselves.
    """
    rows = []
    for column, group in groupby(with_the_best(lines), key=lambda line: tuple(line[key] for key in CELL[:3])):
        found: dict[str, dict[str, float]] = {}  # method -> seed -> accuracy
        for line in group:
            found.setdefault(line["method"], {})[line["seed"]] = float(line["accuracy"])
        theirs = {method: figure_of(*column, method).accuracy for method in found}
        fewest = min(3, max(map(len, found.values())))  # a method with fewer seeds would stand between two others
        ranked = sorted((m for m in found if len(found[m]) >= fewest), key=lambda method: -theirs[method])
        neighbours = [pair for together in comparable(ranked) for pair in pairwise(together)]
        for better, worse in dict.fromkeys(neighbours):
            seeds = sorted(found[better].keys() & found[worse].keys())
            apart = [found[better][seed] - found[worse][seed] for seed in seeds]
            if not apart:
                continue
            mean = f"{statistics.mean(apart):+.2f}" + (f" ± {statistics.stdev(apart):.2f}" if len(apart) > 1 else "")
            each = ", ".join(f"{value:+.2f}" for value in apart)
            rows.append(
                [column[0], f"{column[1]}, {column[2]}", f"{better} over {worse}",
                 f"{theirs[better] - theirs[worse]:+.2f}", mean, each, verdict(apart)]
            )  # fmt: skip
    return table(["paper", "column", "in the paper's order", "paper", "ours", "seed by seed", "reproduced"], rows)


def comparable(methods: list[str]) -> list[list[str]]:
    """The methods that are ranked with each other, in the order given: no list has the paper's synthesis and ours."""
    letter, own = ([m for m in methods if m in (f"fmds{made}", f"hfmds{made}")] for made in ("", OWN))
    if not (letter and own):
        return [methods]
    return [[m for m in methods if m not in other] for other in (letter, own)]


def verdict(apart: list[float]) -> str:
    """What paired differences say about an order; two seeds that agree say little, so it takes three."""
    if len(apart) < 3:
        return "too few seeds"
    if min(apart) > 0:
        return "yes"
    return "no" if max(apart) < 0 else "undecided"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, help="of sweeps, as given with --out")
    parser.add_argument("--measured", type=Path, default=Path("docs/measured.csv"))
    parser.add_argument("--results", type=Path, default=Path("docs/results.md"))
    asked = parser.parse_args()
    lines = merged(read(asked.measured), [line for folder in asked.folders for line in lines_of(folder)])
    write(lines, asked.measured)
    publish("papers", markdown(lines), asked.results)
    publish("order", ordering(lines), asked.results)


if __name__ == "__main__":
    main()
