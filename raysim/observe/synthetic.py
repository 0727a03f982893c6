"""The shared synthetic images for people and other programs: an 8-bit Parquet file, and pictures beside real ones."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from raysim.data.synthetic_tables import column, images_of
from raysim.engine.callbacks import Callback
from raysim.storage.files import write_atomically
from raysim.storage.formats import SYNTHETIC_FORMAT, SYNTHETIC_KEY

if TYPE_CHECKING:
    from raysim.data.federated import FederatedData
    from raysim.data.normalisation import Normalisation
    from raysim.engine.simulation import Result

PER_CLASS = 4  # pairs in the picture
CLASSES = 20  # rows of the picture at most


class SyntheticImages(Callback):
    """A callback that writes synthetic.parquet, pairs.png and synthetic.png where a method shares images."""

    def __init__(self, data: FederatedData, class_names: list[str]):
        self.data, self.class_names = data, class_names

    def on_start(self, settings: dict[str, Any], out: Path) -> None:
        self.out = out

    def on_result(self, result: Result) -> None:
        if not result.shared:
            return
        export(result.shared, self.data.normalisation, self.class_names, self.out / "synthetic.parquet")
        found = [pair for table in result.shared.values() for pair in pairs_of(table, self.data)]
        if pairs := sorted(found, key=lambda pair: pair.label):
            save_pairs(pairs, self.out / "pairs.png")
            draw_beside_real(pairs, self.class_names, self.out / "synthetic.png")


def export(tables: dict[str, pa.Table], normalisation: Normalisation, class_names: list[str], path: Path) -> None:
    """Write what the parts share in Hugging Face's image layout, with part, source client and round.

    It is for looking at: training uses the exact floats.
    """
    encoded = []
    for table in tables.values():
        for start in range(0, table.num_rows, 1000):  # in slices: the floats are four times as large as the pixels
            for image in normalisation.to_bytes(images_of(table)[start : start + 1000]):
                buffer = io.BytesIO()
                _picture(image).save(buffer, "PNG", compress_level=1)
                encoded.append({"bytes": buffer.getvalue(), "path": None})
    features = {
        "image": {"_type": "Image"},
        "label": {"names": class_names, "_type": "ClassLabel"},
        "client": {"dtype": "int64", "_type": "Value"},
        "round": {"dtype": "int64", "_type": "Value"},
        "part": {"dtype": "string", "_type": "Value"},
    }
    columns = {"image": pa.array(encoded, pa.struct({"bytes": pa.binary(), "path": pa.string()}))}
    for name in ("label", "client", "round"):
        columns[name] = pa.array(np.concatenate([column(table, name) for table in tables.values()]), pa.int64())
    columns["part"] = pa.array([part for part, table in tables.items() for _ in range(table.num_rows)], pa.string())
    metadata = {"huggingface": json.dumps({"info": {"features": features}}), SYNTHETIC_KEY: str(SYNTHETIC_FORMAT)}
    content = pa.table(columns).replace_schema_metadata(metadata)
    buffer = io.BytesIO()
    pq.write_table(content, buffer)
    write_atomically(path, buffer.getvalue())


class Pair(NamedTuple):
    """A synthetic image and a real one of its class, of the client that made it if that has one."""

    label: int
    client: int
    round: int
    real: np.ndarray
    made: np.ndarray


def pairs_of(table: pa.Table, data: FederatedData) -> list[Pair]:
    """Choose a few pairs of each class of what a part shares, each of another client."""
    labels, clients, rounds = (column(table, name) for name in ("label", "client", "round"))
    found = []
    for label in np.unique(labels[labels >= 0])[:CLASSES]:  # negative: no label
        where = np.flatnonzero(labels == label)
        _, first = np.unique(clients[where], return_index=True)
        for i in where[np.sort(first)][:PER_CLASS]:
            if (real := _real(data, int(clients[i]), int(label))) is not None:
                made = data.normalisation.to_bytes(images_of(table)[i : i + 1])[0]
                found.append(Pair(int(label), int(clients[i]), int(rounds[i]), real, made))
    return found


def _real(data: FederatedData, client: int, label: int) -> np.ndarray | None:
    """Return the client's first image of a class, or another client's.

    A client need not have one, where labels are guesses, and the server (a negative client) has no images at all.
    """
    for owner in [*([client] if client >= 0 else []), *range(len(data.sizes))]:
        x, y = data.clients.read(owner)
        if len(rows := np.flatnonzero(y == label)):
            return x[rows[0]]
    return None


def save_pairs(pairs: list[Pair], path: Path) -> None:
    """Draw the pairs side by side, real above synthetic, pixel by pixel; the PNG's text has labels and sources."""
    facts = PngInfo()
    facts.add_text("pairs", json.dumps([[pair.label, pair.client, pair.round] for pair in pairs]))
    rows = (np.concatenate(images, axis=2) for images in ([p.real for p in pairs], [p.made for p in pairs]))
    buffer = io.BytesIO()
    _picture(np.concatenate([*rows], axis=1)).save(buffer, "PNG", pnginfo=facts)
    write_atomically(path, buffer.getvalue())


def draw_beside_real(pairs: list[Pair], class_names: list[str], path: Path) -> None:
    """Draw a row of pairs per class."""
    from matplotlib.figure import Figure

    present = sorted({pair.label for pair in pairs})
    columns = 2 * max(Counter(pair.label for pair in pairs).values())
    figure = Figure(figsize=(1.6 + 0.9 * columns, 0.95 * len(present) + 0.6), layout="constrained")
    axes = figure.subplots(len(present), columns, squeeze=False)
    for cell in axes.ravel():
        cell.set_axis_off()
    for row, label in enumerate(present):
        axes[row, 0].text(-0.15, 0.5, class_names[label], ha="right", va="center", transform=axes[row, 0].transAxes)
        for i, pair in enumerate(pair for pair in pairs if pair.label == label):
            for cell, image in zip(axes[row, 2 * i : 2 * i + 2], (pair.real, pair.made), strict=True):
                cell.imshow(_picture(image), cmap="gray", vmin=0, vmax=255)
    for i in range(columns):
        axes[0, i].set_title("synthetic" if i % 2 else "real", fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    write_atomically(path, buffer.getvalue())


def _picture(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image.transpose(1, 2, 0) if len(image) == 3 else image[0])
