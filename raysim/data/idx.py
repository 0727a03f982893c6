"""A reader for the idx files of MNIST and its family, raw or .gz, which checks their length against their header."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from raysim.data.dataset import wrong

UNSIGNED_BYTES = 8  # the type code of the values; the family uses no other
SIDE = 28
MAX_COUNT = 1_000_000  # the largest of the family, EMNIST by class, has 814,255


def read_images(path: Path) -> np.ndarray:
    """Return the images of a file, uint8 [N, 28, 28]."""
    return _read(path, (SIDE, SIDE))


def read_labels(path: Path) -> np.ndarray:
    """Return the labels of a file, uint8 [N]."""
    return _read(path, ())


def _read(path: Path, item: tuple[int, ...]) -> np.ndarray:
    """Return the items of a file, which must be exactly as many as its header says."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            magic, header = file.read(4), file.read(4 * (1 + len(item)))
            if magic != bytes([0, 0, UNSIGNED_BYTES, 1 + len(item)]) or len(header) != 4 * (1 + len(item)):
                raise wrong(f"{path}: not an idx file of {'images' if item else 'labels'}; replace it")
            count, *dimensions = np.frombuffer(header, ">u4").tolist()
            if tuple(dimensions) != item or not 0 < count <= MAX_COUNT:
                found = "x".join(str(n) for n in (count, *dimensions))
                raise wrong(f"{path}: {found} values; expected 1..{MAX_COUNT:,} items of {item or 1}; replace it")
            size = count * int(np.prod(item))
            values = file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise wrong(f"{path}: cannot be read ({error}); replace it") from error
    if len(values) != size:
        raise wrong(f"{path}: {'longer' if len(values) > size else 'shorter'} than its header says; replace it")
    return np.frombuffer(values, np.uint8).reshape(count, *item)
