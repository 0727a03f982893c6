"""What does not fit into the memory is refused in one line, before it is read, decoded or resized."""

import subprocess
import sys
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysim.data import images, load, memory
from raysim.data.loaders import parquet, shapes

from .made import encoded, one_line_error, pixels, png_header, write_folder, write_idx_set, write_parquet


@pytest.fixture
def little_memory(monkeypatch):
    """A machine with a mebibyte."""
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=2**20))


def test_shapes_are_counted_before_they_are_drawn(monkeypatch):
    monkeypatch.setattr(shapes, "generate", None)
    with one_line_error("1,000,000,002,000 images", "GiB", "--train-size"):
        load("shapes", train_size=10**12)
    with one_line_error("4096x4096", "GiB", "--image-size"):
        load("shapes", image_size=4096)


def test_images_are_counted_before_any_is_decoded(little_memory, tmp_path):
    blobs = [encoded(pixels(1, size=16)[0])] + [png_header(4096, 4096)] * 11
    write_parquet(tmp_path / "p/train.parquet", blobs, [0, 1] * 6)
    write_folder(tmp_path / "f", {"a": 6, "b": 6})
    for folder in ("p", "f"):
        with one_line_error("12 images of 512x512", "1 MiB", "--image-size"):
            load(str(tmp_path / folder), image_size=512)
    with one_line_error("10 images of 4096x4096", "160 MiB", "--image-size"):
        images.decode([("row 0", png_header(4096, 4096))], 10)


def test_resizing_what_is_in_memory_is_counted(little_memory, tmp_path):
    write_idx_set(tmp_path / "MNIST/raw")
    with one_line_error("512x512", "MiB"):
        load("mnist", data=tmp_path, image_size=512)


def test_labels_are_read_without_the_images(tmp_path, monkeypatch):
    """Of every read the columns are named; and of the images only those that are kept."""
    path = write_parquet(tmp_path / "train.parquet", [encoded(x) for x in pixels(40)], [0, 1] * 20, group=10)
    asked = []
    original = pq.ParquetFile.iter_batches

    def spy(self, *arguments, **options):
        asked.append((options["columns"], options["row_groups"]))
        return original(self, *arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    monkeypatch.setattr(pq.ParquetFile, "read", None)
    parquet.find_splits(path.parent)
    assert asked == [(["label"], None)]


def test_rows_beyond_the_limit_are_refused(tmp_path, monkeypatch):
    write_parquet(tmp_path / "train.parquet", [encoded(x) for x in pixels(12)], [0, 1] * 6)
    monkeypatch.setattr(parquet, "MAX_ROWS", 11)
    with one_line_error("12 rows", "at most 11"):
        load(str(tmp_path))


def test_a_page_that_does_not_fit_is_refused(tmp_path, little_memory):
    write_parquet(tmp_path / "train.parquet", [bytes([i]) * 2**20 for i in range(12)], [0, 1] * 6)
    with one_line_error("train.parquet", "img.bytes", "split the file"):
        load(str(tmp_path))


def test_an_image_of_too_many_bytes_in_a_file_is_refused(tmp_path, monkeypatch):
    write_parquet(tmp_path / "train.parquet", [bytes(2_000)] * 12, [0, 1] * 6)
    monkeypatch.setattr(images, "MAX_BYTES", 1_000)
    with one_line_error("row 0", "2,000 bytes", "at most 1,000"):
        load(str(tmp_path))


def test_a_small_file_of_gigabytes_takes_little_memory(tmp_path):
    """1,500 copies of an image of 3 MB: 4.5 GB in a file of a few hundred kilobytes."""
    blob = encoded(pixels(1)[0]) + bytes(3_000_000)
    part = pa.table({"image": pa.array([{"bytes": blob, "path": None}] * 20), "label": [0, 1] * 10})
    pq.write_table(pa.concat_tables([part] * 75), tmp_path / "train.parquet", compression="zstd")
    assert (tmp_path / "train.parquet").stat().st_size < 2**20
    script = f"""
import re
from pathlib import Path
from raysim.data import load
dataset = load({str(tmp_path)!r}, train_size=100, test_size=10)
assert dataset.train.x.shape == (100, 3, 8, 8)
# Not getrusage: what it gives begins with the peak of the process that started this one.
peak = int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
assert peak < 900, f"{{peak}} MB"
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120, env={"PYTHONPATH": ":".join(sys.path)})
