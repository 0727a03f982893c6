"""The picture of a partition: how many samples of which class each client has."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from raysim.engine.callbacks import Callback
from raysim.storage.background import BackgroundTask
from raysim.storage.files import write_atomically, writing

if TYPE_CHECKING:
    from raysim.engine.simulation import Result

SORT_ABOVE = 200  # clients; more of them are legible only when similar ones are neighbours
COLUMNS = 600  # the heat map has about twice as many pixels; more clients share columns
WRITE_UP_TO = 25  # clients and classes; in cells of that size a number is readable
CLOSE_SECONDS = 5.0  # that an interrupted run waits, so as not to leave half a picture


class LabelPicture(Callback):
    """A callback that draws labels.csv and labels.png beside the first rounds: importing matplotlib takes a second."""

    def __init__(self, counts: np.ndarray, class_names: list[str]):
        self.counts, self.class_names = counts, class_names
        self.drawing: BackgroundTask | None = None

    def on_start(self, settings: dict[str, Any], out: Path) -> None:
        self.drawing = BackgroundTask(self._draw, out)

    def _draw(self, out: Path) -> None:
        with writing(out / "labels.png"):
            save_labels(self.counts, self.class_names, out)

    def on_result(self, result: Result) -> None:
        if self.drawing:
            self.drawing.wait()

    def close(self) -> None:
        if self.drawing:
            self.drawing.join(CLOSE_SECONDS)


def save_labels(counts: npt.ArrayLike, class_names: Sequence[object], folder: Path) -> None:
    """Write labels.csv, a row of counts per client (as `--table` takes it), and its picture labels.png."""
    text = "".join(f"{','.join(map(str, row))}\n" for row in np.asarray(counts).tolist())
    write_atomically(folder / "labels.csv", text.encode())
    draw_labels(counts, class_names, folder / "labels.png")


def draw_labels(counts: npt.ArrayLike, class_names: Sequence[object], path: Path) -> None:
    """Draw samples per client and class (counts [clients, classes]) as a heat map under the clients' sizes.

    Many clients are sorted by their largest class, the purest first, and averaged in groups. It draws on a canvas of
    its own and not through pyplot, so any thread may call it; the file appears complete or not at all.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    counts = np.asarray(counts)
    clients, classes = counts.shape
    shown, group, _ = arrange(counts)
    edges = np.minimum(np.arange(len(shown) + 1) * group, clients) - 0.5  # the last group may be smaller

    width, height = float(np.clip(1.6 + 0.5 * clients, 6.5, 12)), float(np.clip(0.3 * classes, 2, 7))
    figure = Figure(figsize=(width, height + 2), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    strip, heat = figure.subplots(2, 1, sharex=True, height_ratios=[1, height])
    sizes = counts.sum(axis=1)
    strip.set_title(
        f"{clients:,} clients, {classes:,} classes, {sizes.sum():,} samples\n"
        f"{sizes.min():,} to {sizes.max():,} samples per client, median {np.median(sizes):,.0f}",
        fontsize=10,
        loc="left",
    )
    _draw_sizes(strip, shown.sum(axis=1), edges)
    mesh = _draw_heat(heat, shown, edges, class_names)
    heat.set_xlabel("client" if clients <= SORT_ABOVE else "clients, sorted by their largest class")
    if group > 1:
        heat.set_xlabel(f"{heat.get_xlabel()}; a column is the mean of {group:,}")
    if max(clients, classes) <= WRITE_UP_TO:
        _write_counts(heat, counts, mesh.norm)
    bar = figure.colorbar(mesh, ax=heat, pad=0.01, label="samples per client", format=lambda value, _: f"{value:,g}")
    bar.outline.set_visible(False)

    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        canvas.print_figure(temporary, format=path.suffix[1:] or "png", dpi=110)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def arrange(counts: np.ndarray, most: int = COLUMNS) -> tuple[np.ndarray, int, np.ndarray]:
    """Return the columns to draw as mean counts [columns, classes], the clients that each averages, and their order."""
    clients = len(counts)
    if clients <= min(SORT_ABOVE, most):
        return counts.astype(float), 1, np.arange(clients)
    share = counts.max(axis=1) / np.maximum(counts.sum(axis=1), 1)
    order = np.lexsort((-share, counts.argmax(axis=1)))
    group = -(-clients // min(COLUMNS, most))
    starts = np.arange(0, clients, group)
    means = np.add.reduceat(counts[order], starts, axis=0) / np.diff(starts, append=clients)[:, None]
    return means, group, order


def _draw_sizes(axes: Any, sizes: np.ndarray, edges: np.ndarray) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.stairs(sizes, edges, fill=True, color="#5a6f8c")
    axes.set_ylim(0, max(sizes.max(), 1) * 1.08)
    axes.set_ylabel("samples")
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(bottom=False)


def _draw_heat(axes: Any, shown: np.ndarray, edges: np.ndarray, class_names: Sequence[object]) -> Any:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, LogNorm
    from matplotlib.ticker import MaxNLocator

    classes, clients = shown.shape[1], round(edges[-1] + 0.5)
    # Logarithmic, and the faintest colour well apart from the white of zero: both one sample and a thousand show.
    colours = ListedColormap(colormaps["YlGnBu"](np.linspace(0.18, 1, 256)))
    lowest = shown[shown > 0].min(initial=1)
    norm = LogNorm(lowest, max(shown.max(), 10 * lowest))
    cells = np.ma.masked_equal(shown.T, 0)
    mesh = axes.pcolormesh(edges, np.arange(classes + 1) - 0.5, cells, cmap=colours, norm=norm, rasterized=True)
    axes.invert_yaxis()
    axes.set_xlim(-0.5, clients - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(min(clients, 20), integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    ticks = range(0, classes, -(-classes // WRITE_UP_TO))
    # Names come from datasets, where a $ does not start a formula.
    axes.set_yticks(ticks, labels=[_short(str(class_names[i])) for i in ticks], parse_math=False)
    return mesh


def _short(name: str) -> str:
    return name if len(name) <= 20 else name[:19] + "…"


def _write_counts(axes: Any, counts: np.ndarray, norm: Any) -> None:
    for (client, label), count in np.ndenumerate(counts):
        if count:
            colour = "white" if norm(count) > 0.55 else "black"
            axes.text(client, label, f"{count:,}", ha="center", va="center", color=colour, fontsize=7)
