"""The partition by a table."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from raysim.data.partitions.base import Partitioner
from raysim.errors import InputError
from raysim.settings import setting

# SDA-FL table 5: six hospitals; columns Normal, Covid-19, Pneumonia. And the same images dealt evenly.
TABLES = {
    "covid19": (
        (2000, 750, 0),
        (0, 750, 250),
        (2000, 0, 250),
        (2000, 750, 0),
        (0, 750, 250),
        (2000, 0, 250),
    ),
    "covid19-iid": (
        (1334, 500, 167),
        (1334, 500, 167),
        (1333, 500, 167),
        (1333, 500, 167),
        (1333, 500, 166),
        (1333, 500, 166),
    ),
}
MAX_BYTES = 256 * 2**20  # of a CSV file: ten million clients with ten classes


@dataclass(frozen=True)
class Table(Partitioner):
    """Exactly as many samples for each client and class as a table says."""

    example: ClassVar[str] = "FILE"

    table: str | None = setting(
        None,
        "CSV file for the table partition, a row of class counts per client; or a table by name: covid19, covid19-iid",
    )

    def check(self, chosen: bool) -> None:
        if chosen != (self.table is not None):
            raise InputError("--partition table goes with --table FILE (or --table covid19); give both or neither")
        if self.table is not None:
            read_table(self.table)

    def training_counts(self) -> tuple[int, ...] | None:
        return None if self.table is None else tuple(read_table(self.table).sum(0).tolist())

    def owners(
        self, members: list[np.ndarray], clients: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        if self.table is None:
            raise InputError(f"partition: kind 'table' without a table; give a CSV file or one of {', '.join(TABLES)}")
        table = read_table(self.table)
        rows, columns = table.shape
        classes, samples = len(members), sum(map(len, members))
        if rows != clients:
            raise InputError(f"partition table: {rows} rows for {clients} clients; give one row per client")
        if columns != classes:
            raise InputError(f"partition table: {columns} columns for {classes} classes; give one column per class")
        owner = np.full(samples, -1)
        for label, (indices, wanted) in enumerate(zip(members, table.T, strict=True)):
            asked = sum(wanted.tolist())  # Python's integers: int64 could overflow and look small
            if asked > len(indices):
                available = f"class {label} has {len(indices)} samples"
                raise InputError(f"partition table: {available}, the table asks for {asked}; ask for fewer")
            owner[indices[:asked]] = np.repeat(np.arange(clients), wanted)
        unused = int((owner < 0).sum())
        return owner, (f"partition: the table leaves {unused} of {samples} samples unused",) if unused else ()


def read_table(source: str | Path | ArrayLike) -> np.ndarray:
    """Return a clients × classes table of counts: by its name, from a CSV file with a row per client, or given."""
    if not isinstance(source, str | Path):
        return _checked(source, "partition table")
    if source in TABLES:
        return np.array(TABLES[str(source)], dtype=np.int64)
    path = Path(source)
    try:
        if not path.is_file():
            raise InputError(f"partition table {source}: no such file; give a CSV file or one of {', '.join(TABLES)}")
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"partition table {path}: more than {MAX_BYTES:,} bytes; give a CSV file of integers")
        rows = _rows(path)
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"partition table {path}: cannot be read ({reason}); give a CSV file of integers") from error
    if not rows:
        raise InputError(f"partition table {path}: empty; write one row of counts per client")
    return _checked(np.stack(rows), f"partition table {path}")


def _rows(path: Path) -> list[np.ndarray]:
    """Return the rows of a CSV file of integers, all of one length; empty lines are skipped."""
    rows: list[np.ndarray] = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            where = f"partition table {path}, line {reader.line_num}"
            try:
                row = np.array([int(cell) for cell in cells], dtype=np.int64)
            except (ValueError, OverflowError):
                raise InputError(f"{where}: not integers; write one count per class, separated by commas") from None
            if rows and len(row) != len(rows[0]):
                raise InputError(f"{where}: {len(row)} columns, before it {len(rows[0])}; give one per class")
            rows.append(row)
    return rows


def _checked(values: ArrayLike, where: str) -> np.ndarray:
    """Return the table as int64 [clients, classes], or raise an InputError that says what is wrong with it."""
    try:
        table = np.asarray(values)
    except ValueError:  # rows of different lengths
        table = np.empty(0)
    if table.ndim != 2 or not np.issubdtype(table.dtype, np.integer):
        raise InputError(f"{where}: not a table of integers; give one row per client and one column per class")
    table = table.astype(np.int64)
    negative = np.argwhere(table < 0)
    if len(negative):
        client, label = negative[0]
        raise InputError(f"{where}: client {client}, class {label} has {table[client, label]} samples; use 0 or more")
    empty = np.flatnonzero(~table.any(axis=1))
    if len(empty):
        raise InputError(f"{where}: client {empty[0]} has no sample; give it one or remove its row")
    return table
