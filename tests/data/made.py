"""Small datasets made on the spot, and the check that an error is one that a user can read."""

import gzip
import io
import json
import struct
import zlib
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from raysim.errors import InputError

SHARED = Path(__file__).parents[2].parent / "shared" / "data"  # real data, where this machine has it


@contextmanager
def one_line_error(*mentions):
    """What is inside raises an InputError of one line that mentions all of these."""
    with pytest.raises(InputError) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    for mention in mentions:
        assert str(mention) in message, f"{mention!r} is not in: {message}"


def pixels(n=12, channels=3, size=8, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, channels, size, size), dtype=np.uint8)


def picture(x: np.ndarray) -> Image.Image:
    """Of one image [C, H, W]."""
    return Image.fromarray(x[0] if len(x) == 1 else x.transpose(1, 2, 0))


def encoded(x: np.ndarray, format="PNG") -> bytes:
    file = io.BytesIO()
    picture(x).save(file, format)
    return file.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG that says how large it is, and has nearly no content."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0"))


def write_parquet(path, blobs, labels, *, image="img", label="label", names=None, group=None, struct=True) -> Path:
    """A file in the Hugging Face layout; `names` go into its metadata."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = pa.array([{"bytes": blob, "path": None} for blob in blobs]) if struct else pa.array(blobs, pa.binary())
    table = pa.table({image: images, label: labels})
    if names:
        features = {"info": {"features": {label: {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    pq.write_table(table, path, row_group_size=group)
    return path


def write_folder(root: Path, counts: dict[str, int], channels=3, size=8) -> Path:
    """An image folder: class -> number of images."""
    for number, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for i, x in enumerate(pixels(count, channels, size, seed=number)):
            picture(x).save(root / name / f"{i:03}.png")
    return root


def write_idx(path: Path, values: np.ndarray) -> Path:
    """Compressed if the name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    content = header + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_idx_set(folder: Path, splits=("train", "t10k"), labels=range(10), suffix="") -> Path:
    """Four idx files of 28x28 images, 20 per split."""
    for seed, split in enumerate(splits):
        write_idx(folder / f"{split}-images-idx3-ubyte{suffix}", pixels(20, 1, 28, seed)[:, 0])
        write_idx(folder / f"{split}-labels-idx1-ubyte{suffix}", np.resize(list(labels), 20))
    return folder
