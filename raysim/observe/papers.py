"""The papers' own figures, to show beside those of our runs: accuracies in %, PSNR in dB, a client's GFLOPs."""

from dataclasses import dataclass

from raysim.data import partitions


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
    """The papers' figures for a run's settings: those of its dataset, partition and method, whatever its size.

    >>> [str(f) for f in find({"method": "fmds", "dataset": "cifar10", "partition": "dirichlet", "beta": 0.01})]
    ['33.67 ± 3.49 (HFMDS-FL table 2)']
    """
    where = str(settings["dataset"]), partition_name(settings), method_name(settings)
    if settings.get("labelled") is not None:  # the tables are of clients who have a label for every image
        return []
    return [table[where] for table in _TABLES if where in table]


def cell(paper: str, dataset: str, partition: str, method: str) -> Figure:
    """One cell of a paper's table, by the names that `partition_name` and `method_name` give.

    >>> cell("FedPA table II", "mnist", "dirichlet 1", "fedgen").accuracy
    95.34
    """
    where = dataset, partition, method
    return next(table[where] for table in _TABLES if where in table and table[where].paper == paper)


def partition_name(settings: dict[str, object]) -> str:
    """`dirichlet 0.1`, `classes 2`, `iid`, `table covid19`.

    >>> partition_name({"partition": "dirichlet", "beta": 0.1})
    'dirichlet 0.1'
    """
    return partitions.from_settings(settings).label()


def method_name(settings: dict[str, object]) -> str:
    """The papers' name of a run's method. It does not depend on `fedbn`, which FedPA's code has in every method.

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


Table = dict[tuple[str, str, str], Figure]  # (dataset, partition, method) -> cell


def _table(
    paper: str, columns: list[tuple[str, str]], rows: dict[str, str], psnr: dict[str, str] | None = None,
    gflops: dict[str, dict[str, float]] | None = None, measure: str = Figure.measure,
) -> Table:  # fmt: skip
    """A table from a line of figures per method, each `mean` or `mean±std`, for columns of dataset and partition.

    `psnr` has such lines too; `gflops` has a figure by method and dataset, the same for all partitions.
    """
    cells = {}
    for method, line in rows.items():
        similar: list[str] = (psnr or {}).get(method, "").split() or [""] * len(columns)
        for (dataset, partition), cell, db in zip(columns, line.split(), similar, strict=True):
            mean, _, std = cell.partition("±")
            cost = (gflops or {}).get(method, {}).get(dataset)
            cells[dataset, partition, method] = Figure(
                paper, float(mean), float(std) if std else None, float(db) if db else None, measure, cost
            )
    return cells


_TABLES = [
    _table(
        "HFMDS-FL table 2",
        [
            ("cifar10", "dirichlet 0.01"), ("cifar10", "dirichlet 0.05"), ("cifar10", "classes 2"),
            ("cifar100", "dirichlet 0.01"), ("cifar100", "dirichlet 0.05"), ("cifar100", "classes 10"),
        ],
        {
            "fedavg": "28.53±6.74 45.31±1.64 50.44±2.70 27.14±0.46 30.51±0.24 28.16±0.24",
            "fedprox": "27.68±5.31 42.57±2.10 46.36±2.80 25.64±0.62 29.08±0.32 26.99±0.42",
            "moon": "28.20±7.18 44.81±1.80 50.24±2.80 27.20±0.52 30.67±0.26 28.10±0.20",
            "fedgen": "28.33±7.45 45.66±1.59 51.33±1.72 26.80±0.74 30.48±0.48 28.78±0.22",
            "fedmix": "26.27±2.41 45.11±1.57 51.30±3.54 26.80±0.58 30.30±0.43 28.15±0.25",
            "fedgan": "32.75±5.41 45.93±1.14 52.54±0.49 26.82±0.74 30.00±0.07 27.87±0.13",
            "fmds": "33.67±3.49 45.95±0.99 52.69±0.58 28.82±0.76 31.22±0.39 29.81±0.19",
            "hfmds": "36.05±3.08 46.73±1.70 53.74±0.26 29.48±0.79 31.54±0.32 29.92±0.36",
        },
        # Its table 3.
        {
            "fedmix": "21.13 21.86 21.17 15.78 15.84 15.74",
            "fedgan": "17.89 18.48 18.50 17.30 17.49 17.39",
            "fmds": "16.98 17.32 16.69 12.41 10.96 13.38",
            "hfmds": "15.59 16.53 16.60 12.36 10.33 13.15",
        },
        {
            "fedmix": {"cifar10": 91.06, "cifar100": 91.56},
            "fedgan": {"cifar10": 135.14, "cifar100": 135.38},
            "fmds": {"cifar10": 69.32, "cifar100": 69.56},
            "hfmds": {"cifar10": 69.33, "cifar100": 69.57},
        },
        measure="late_accuracy",  # it does not say which rounds; with half of the clients active single ones wander
    ),
    _table(
        "FedPA table II",
        [
            ("mnist", "dirichlet 0.1"), ("mnist", "dirichlet 1"), ("emnist", "dirichlet 0.1"),
            ("emnist", "dirichlet 1"), ("fashion_mnist", "dirichlet 0.3"), ("fashion_mnist", "dirichlet 1"),
            ("celeba", "iid"),
        ],
        {
            "fedavg": "88.87±2.19 94.58±0.56 70.09±0.81 78.41±0.55 84.36±0.26 86.31±0.18 85.53±0.34",
            "fedprox": "88.18±2.69 94.19±0.43 69.27±0.93 77.60±0.59 84.58±0.10 86.19±0.17 85.85±0.44",
            "fedensemble": "91.09±0.19 94.71±0.64 70.33±0.80 78.51±0.49 85.44±0.13 86.49±0.18 87.64±0.69",
            "fedgen": "90.49±2.40 95.34±0.18 76.34±0.78 82.60±0.33 85.26±0.18 86.90±0.14 86.57±0.68",
            "fedhkd": "90.15±2.53 94.76±0.35 72.39±0.23 79.27±0.36 84.67±0.19 86.44±0.05 85.66±0.83",
            "fedpa": "94.79±0.18 96.77±0.05 78.25±0.67 83.30±0.09 85.52±0.50 87.41±0.23 87.32±0.53",
        },
        measure="best_five_accuracy",  # which its code prints, over three runs on one partition
    ),
    _table(
        "FedDPMS table 1",
        [("fashion_mnist", "dirichlet 0.5"), ("cifar10", "dirichlet 0.5"), ("cifar100", "dirichlet 0.5")],
        {
            "fedavg": "84.76 65.01 36.21",
            "fedprox": "84.46 65.53 36.46",
            "fedmix": "86.40 65.42 34.98",
            "moon": "84.58 67.42 37.15",
            "feddpms": "87.59 67.97 38.61",
        },
        measure="best_accuracy",  # which its code records
    ),
    _table(
        "SDA-FL table 1",
        [
            (dataset, f"classes {count}")
            for dataset in ("mnist", "fashion_mnist", "cifar10", "svhn")
            for count in (1, 2, 3)
        ],
        {
            "fedavg": "83.44 97.61 98.42 16.50 73.50 82.47 18.36 61.28 79.33 14.05 81.11 84.18",
            "fedprox": "84.17 97.55 98.38 57.14 75.76 83.43 11.24 63.16 79.54 17.53 86.28 92.15",
            "scaffold": "25.39 94.17 96.89 56.80 70.82 77.68 12.81 60.78 79.35 11.64 73.34 80.13",
            "naivemix": "84.35 84.35 98.11 66.62 79.54 82.09 14.39 64.39 78.92 14.35 84.64 92.30",
            "fedmix": "90.96 90.96 98.46 72.11 82.41 84.65 13.57 65.76 79.49 16.78 86.61 92.61",
            "sdafl": "98.19 98.26 98.50 85.70 86.87 87.06 37.70 67.89 84.56 88.46 90.70 93.16",
        },
    ),
    _table(
        "SDA-FL table 6",
        [("covid19", "table covid19")],
        {
            "fedavg": "94.05", "fedprox": "95.03", "scaffold": "94.30", "naivemix": "94.14", "fedmix": "94.28",
            "feddpgan": "94.57", "sdafl": "96.25",
        },
    ),
    _table("SDA-FL table 6", [("covid19", "table covid19-iid")], {"fedavg": "95.19"}),
]  # fmt: skip
