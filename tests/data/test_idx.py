"""idx files: read exactly, or refused with the file's name."""

import gzip

import numpy as np
import pytest

from raysim.data import idx

from .made import one_line_error, pixels, write_idx

X = pixels(5, 1, 28)[:, 0]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_round_trip(tmp_path, suffix):
    assert np.array_equal(idx.read_images(write_idx(tmp_path / f"images{suffix}", X)), X)
    assert idx.read_labels(write_idx(tmp_path / f"labels{suffix}", np.arange(5))).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("change", "mention"),
    [
        (lambda content: content[:-1], "shorter than its header says"),
        (lambda content: content + b"\0", "longer than its header says"),
        (lambda content: content[:3], "not an idx file of images"),
        (lambda content: content[:9], "not an idx file of images"),
        (lambda content: b"\0\0\x0d\x03" + content[4:], "not an idx file of images"),  # floats
        (lambda content: content[:4] + b"\0\0\0\0" + content[8:], "0x28x28"),
        (lambda content: content[:4] + b"\xff\xff\xff\xff" + content[8:], "4294967295x28x28"),
        (lambda content: content[:8] + b"\0\0\xff\xff" + content[12:], "5x65535x28"),
    ],
)
def test_a_file_that_is_not_what_it_says(tmp_path, suffix, change, mention):
    path = tmp_path / f"images{suffix}"
    content = change(write_idx(tmp_path / "good", X).read_bytes())
    path.write_bytes(gzip.compress(content) if suffix else content)
    with one_line_error(path, mention, "replace it"):
        idx.read_images(path)


def test_labels_are_not_images(tmp_path):
    with one_line_error("labels", "not an idx file of images"):
        idx.read_images(write_idx(tmp_path / "labels", np.arange(5)))


def test_broken_compression(tmp_path):
    path = write_idx(tmp_path / "images.gz", X)
    good = path.read_bytes()
    for content in (b"plain", good[:100], good[:200] + bytes(20) + good[220:]):
        path.write_bytes(content)
        with one_line_error(path, "cannot be read", "replace it"):
            idx.read_images(path)
