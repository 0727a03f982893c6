"""One table for people and programs: aligned text, Markdown, LaTeX, CSV and JSON."""

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

NONE = "–"  # in a cell without a figure

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}


@dataclass(frozen=True)
class Table:
    """A table: `heads` and `cells` as people read them, and `records` as programs do.

    >>> print(Table(["run", "final %"], [["fedavg", "9.50"], ["hfmds", "12.00"]]).text())
    run     final %
    fedavg     9.50
    hfmds     12.00
    """

    heads: Sequence[str]
    cells: Sequence[Sequence[str]]
    records: Sequence[dict[str, Any]] = ()  # all with the same keys
    texts: int = 1  # columns of text, on the left; figures follow

    def text(self) -> str:
        """Return aligned columns: texts to the left, figures to the right."""
        rows = [self.heads, *self.cells]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(self._aligned(row, widths)).rstrip() for row in rows)

    def markdown(self) -> str:
        """Return a Markdown table."""
        rows = [self.heads, ["---"] * len(self.heads), *self.cells]
        return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows)

    def latex(self) -> str:
        """Return a tabular environment that needs no package."""
        columns = "l" * self.texts + "r" * (len(self.heads) - self.texts)
        head, *body = (f"{' & '.join(map(_escaped, row))} \\\\" for row in [self.heads, *self.cells])
        return "\n".join([f"\\begin{{tabular}}{{{columns}}}", head, "\\hline", *body, "\\end{tabular}"])

    def csv(self) -> str:
        """Return a line of keys, then a line for each record; what is None is empty."""
        out = io.StringIO()
        writer = csv.DictWriter(out, list(self.records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.records)
        return out.getvalue().rstrip("\n")

    def json(self) -> str:
        """Return the records as a list of objects."""
        return json.dumps(list(self.records), indent=1)

    def _aligned(self, row: Sequence[str], widths: list[int]) -> list[str]:
        sized = enumerate(zip(row, widths, strict=True))
        return [cell.ljust(width) if i < self.texts else cell.rjust(width) for i, (cell, width) in sized]


FORMATS: dict[str, Callable[[Table], str]] = {
    "json": Table.json, "csv": Table.csv, "markdown": Table.markdown, "latex": Table.latex,
}  # fmt: skip


def _escaped(text: str) -> str:
    return re.sub(r"[\\~^–&%$#_{}]", lambda found: _LATEX.get(found[0], f"\\{found[0]}"), text)
