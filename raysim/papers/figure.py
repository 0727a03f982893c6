"""The papers' own figures, to show beside those of our runs: accuracies in %, PSNR in dB, a client's GFLOPs."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from raysim.data import partitions
from raysim.papers.files import Content, names, read

Cell = tuple[str, str, str]  # dataset, partition, method
NOT_PRINTED = "–"


@dataclass(frozen=True)
class Figure:
    """One cell of a paper's table."""

    paper: str
    accuracy: float
    std: float | None = None
    psnr: float | None = None
    measure: str = "final_accuracy"  # the figure of a run's summary to compare with
    gflops: float | None = None  # by the paper's own way of counting, which it does not give

    def __str__(self) -> str:
        spread = "" if self.std is None else f" ± {self.std:.2f}"
        return f"{self.accuracy:.2f}{spread} ({self.paper})"


def find(settings: dict[str, object]) -> list[Figure]:
    """Return the papers' figures for a run's settings: those of its dataset, partition and method, whatever its size.

    >>> [str(f) for f in find({"method": "fmds", "dataset": "cifar10", "partition": "dirichlet", "beta": 0.01})]
    ['33.67 ± 3.49 (HFMDS-FL table 2)']
    """
    if settings.get("labelled") is not None:  # the tables are of clients who have a label for every image
        return []
    where = str(settings["dataset"]), partition_name(settings), method_name(settings)
    return [table[where] for table in _tables() if where in table]


def cell(paper: str, dataset: str, partition: str, method: str) -> Figure:
    """Return one cell of a paper's table, by the names that `partition_name` and `method_name` give.

    >>> cell("FedPA table II", "mnist", "dirichlet 1", "fedgen").accuracy
    95.34
    """
    where = dataset, partition, method
    return next(table[where] for table in _tables() if where in table and table[where].paper == paper)


def partition_name(settings: dict[str, object]) -> str:
    """Return the partition as the tables have it: `dirichlet 0.1`, `classes 2`, `iid`, `table covid19`.

    >>> partition_name({"partition": "dirichlet", "beta": 0.1})
    'dirichlet 0.1'
    """
    return partitions.from_settings(settings).label()


def method_name(settings: dict[str, object]) -> str:
    """Return the papers' name of a run's method. It does not depend on `fedbn`, which all methods of FedPA's code have.

    >>> method_name({"method": "fedpa_reference+fedbn"}), method_name({"method": "fedbn"})
    ('fedpa', 'fedavg')
    """
    parts = [part for part in str(settings["method"]).split("+") if part != "fedbn"]
    if settings.get("hfmds.share") == "real":
        return f"{settings['method']}, real images"  # the bound of our studies, which no paper has
    if parts == ["hfmds"] and settings.get("hfmds.mu") == 0:
        return "fmds"
    if parts == ["fedpa_reference"] and settings.get("fedpa_reference.pairs") == "all":
        return "fedgen"  # by its alias fedgen_reference
    return "+".join(part.removesuffix("_reference") for part in parts) or "fedavg"


@cache
def _tables() -> list[dict[Cell, Figure]]:
    """Return the tables whose cells any run may find."""
    return [dict(_cells(content)) for content in map(read, names(of_tables=True)) if "paper" in content]


def _cells(table: Content) -> Iterator[tuple[Cell, Figure]]:
    """Yield the cells of a table."""
    for dataset, lines in table["figures"].items():
        similar, costs = (table.get(what, {}).get(dataset, {}) for what in ("psnr", "gflops"))
        for method, line in lines.items():
            if method == "columns":
                continue
            for i, (partition, text) in enumerate(zip(lines["columns"], line, strict=True)):
                if text == NOT_PRINTED:
                    continue
                mean, _, std = text.partition(" ± ")
                yield (
                    (dataset, partition, method),
                    Figure(
                        paper=table["paper"],
                        accuracy=float(mean),
                        std=float(std) if std else None,
                        psnr=float(similar[method][i]) if method in similar else None,
                        measure=table.get("measure", Figure.measure),
                        gflops=float(costs[method]) if method in costs else None,
                    ),
                )
