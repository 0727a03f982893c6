"""The papers' tables and ablations by name (`raysim sweep NAME`), each a grid of settings."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from raysim.data import partitions
from raysim.papers.figure import cell
from raysim.papers.files import Content, Settings, flat, names, read

Axis = dict[str, Settings]  # name of a point in the table -> its settings


@dataclass(frozen=True)
class Sweep:
    """Every combination of the axes' points, on top of the base (which may name a preset)."""

    about: str
    base: Settings
    axes: tuple[Axis, ...]
    # Row -> accuracy in %, where the paper prints it; None: runs find their cells of a paper's table by themselves.
    paper: dict[str, float] | None = None
    seeds: tuple[int, ...] = ()  # as many as the paper has trials; empty: the one of the base
    # Name of a point -> the name under which the table has the best of such points, where the paper tunes a setting.
    best_of: dict[str, str] = field(default_factory=dict)


@cache
def sweeps() -> dict[str, Sweep]:
    """Return every sweep by name."""
    tables = map(read, names(of_tables=True))
    return {name: _sweep(table | own) for table in tables for name, own in table["sweeps"].items()}


def _sweep(content: Content) -> Sweep:
    """Return a sweep from its entries and those of its file."""
    rows, best_of = _rows(content)
    columns = content.get("columns", {})
    by_name = _partitions(columns) if isinstance(columns, list) else _points(columns)
    axes = tuple(axis for axis in (rows, by_name) if axis)
    figures = None if "paper" in content else _figures(content, list(by_name))
    seeds = tuple(content.get("seeds", ()))
    return Sweep(content["about"], flat(content["setting"]), axes, figures, seeds, best_of)


def _rows(content: Content) -> tuple[Axis, dict[str, str]]:
    """Return the rows' settings, and of those that are values of a tuned method its name."""
    if isinstance(content["rows"], dict):
        return _points(content["rows"]), {}
    paper = read(content["methods"]) if "methods" in content else {}
    rows: Axis = {}
    best_of: dict[str, str] = {}
    for name in content["rows"]:
        if name in (tuned := paper.get("tuned", {})):
            ((key, values),) = flat({name: tuned[name]}).items()
            points = {f"{name} {point}": {"method": name} | own for point, own in _points({key: values}).items()}
            best_of |= dict.fromkeys(points, name)
        else:
            points = {name: flat(paper.get("methods", {}).get(name, {"method": name}))}
        rows |= points
    return rows, best_of


def _points(given: dict[str, Any]) -> Axis:
    """Return points with their settings; a setting with a list of values is a point for each value.

    >>> _points({"C=0.1": {"active": 2}, "hfmds.mu": [0.0, "none"]})
    {'C=0.1': {'active': 2}, 'mu=0': {'hfmds.mu': 0.0}, 'mu=none': {'hfmds.mu': 'none'}}
    """
    points: Axis = {}
    for name, value in given.items():
        if isinstance(value, dict):
            points[name] = flat(value)
        else:
            key = name.rpartition(".")[2]
            points |= {f"{key}={each if isinstance(each, str) else f'{each:g}'}": {name: each} for each in value}
    return points


def _partitions(labels: list[str]) -> Axis:
    """Return partitions such as `classes 2` with their settings."""
    return dict(partitions.parse(label.replace(" ", ":", 1)) for label in labels)


def _figures(content: Content, columns: list[str]) -> dict[str, float]:
    """Return the accuracies that the paper prints, by the rows of the sweep."""
    printed: dict[str, str] = {}
    for row, cells in content.get("figures", {}).items():
        one = isinstance(cells, str)
        printed |= {row: cells} if one else {f"{row}, {c}": v for c, v in zip(columns, cells, strict=True)}
    return {row: cell(**content["usual"]).accuracy if v == "usual" else float(v) for row, v in printed.items()}
