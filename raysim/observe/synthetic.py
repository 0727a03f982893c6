"""The shared synthetic images for people and other programs: an 8-bit Parquet export, a picture beside real ones."""

import io
import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from raysim.data.federated import Federation
from raysim.data.synthetic_tables import column, images_of
from raysim.storage.run_directory import write_atomically

PER_CLASS = 4  # pairs in the picture
CLASSES = 20  # rows at most


def to_bytes(images: np.ndarray, federation: Federation) -> np.ndarray:
    """Normalised images as uint8 pixels [N, C, H, W]: rounded, and cut where they leave the range."""
    shape = (1, len(federation.mean), 1, 1)
    mean, std = (np.array(v, dtype=np.float32).reshape(shape) for v in (federation.mean, federation.std))
    return np.clip(np.rint(images * std + mean), 0, 255).astype(np.uint8)


def export(tables: dict[str, pa.Table], federation: Federation, class_names: list[str], path: Path) -> None:
    """What the parts share, in Hugging Face's image layout with part, source client and round.

    For looking at: training uses the exact floats.
    """
    encoded = []
    for table in tables.values():
        for start in range(0, table.num_rows, 1000):  # in parts: the floats are four times as large as the pixels
            for image in to_bytes(images_of(table)[start : start + 1000], federation):
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
    content = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    buffer = io.BytesIO()
    pq.write_table(content, buffer)
    write_atomically(path, buffer.getvalue())


class Pair(NamedTuple):
    """A synthetic image, and a real one of its class: of the client that made it, if it has one."""

    label: int
    client: int
    round: int
    real: np.ndarray
    made: np.ndarray


def pairs_of(table: pa.Table, federation: Federation) -> list[Pair]:
    """A few of each class of what a part shares, of different clients if there are as many."""
    labels, clients, rounds = (column(table, name) for name in ("label", "client", "round"))
    found = []
    for label in np.unique(labels[labels >= 0])[:CLASSES]:  # below 0: none
        where = np.flatnonzero(labels == label)
        _, first = np.unique(clients[where], return_index=True)
        for i in where[np.sort(first)][:PER_CLASS]:
            if (real := _real(federation, int(clients[i]), int(label))) is not None:
                made = to_bytes(images_of(table)[i : i + 1], federation)[0]
                found.append(Pair(int(label), int(clients[i]), int(rounds[i]), real, made))
    return found


def _real(federation: Federation, client: int, label: int) -> np.ndarray | None:
    """The client's first image of a class; if it has none (its label was a guess, the server made it), another's."""
    for owner in [*([client] if client >= 0 else []), *range(len(federation.sizes))]:
        x, y = federation.clients.read(owner)
        if len(rows := np.flatnonzero(y == label)):
            return x[rows[0]]
    return None


def save_pairs(pairs: list[Pair], path: Path) -> None:
    """The pairs' pixels and nothing else, one pair beside the other, real above synthetic; its text says whose."""
    facts = PngInfo()
    facts.add_text("pairs", json.dumps([[pair.label, pair.client, pair.round] for pair in pairs]))
    rows = (np.concatenate(images, axis=2) for images in ([p.real for p in pairs], [p.made for p in pairs]))
    buffer = io.BytesIO()
    _picture(np.concatenate([*rows], axis=1)).save(buffer, "PNG", pnginfo=facts)
    write_atomically(path, buffer.getvalue())


def draw_beside_real(pairs: list[Pair], class_names: list[str], path: Path) -> None:
    """A row per class with its pairs."""
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
