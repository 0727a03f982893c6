"""The record of who owns which sample, and the test split dealt accordingly."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from raysim.data import federated_writer
from raysim.data.dataset import Split
from raysim.data.federated_writer import chunked, deal_test
from tests.data.dealing import partition


def test_indices_and_counts():
    labels = np.array([0, 1, 1, 0, 2])
    parts = partition(labels, 3, kind="iid", clients=2, seed=0)
    assert np.array_equal(np.concatenate([parts.indices(0), parts.indices(1)]), parts.order)
    expected = [np.bincount(labels[parts.indices(k)], minlength=3) for k in range(2)]
    assert np.array_equal(parts.counts(labels, 3), expected)
    for outside in (-1, 2):
        with pytest.raises(IndexError, match="of 2"):
            parts.indices(outside)


def test_the_test_split_follows_the_classes_held():
    labels = np.array([0, 1, 2] * 40)  # 40 of each
    held = np.array([[True, False, True], [True, True, False], [False, False, False], [True, False, False]])
    order, offsets = deal_test(labels, held)
    shares = np.split(order, offsets[1:-1])
    counts = [np.bincount(labels[s], minlength=3).tolist() for s in shares]
    assert counts == [[10, 0, 10], [10, 10, 0], [0, 0, 0], [10, 0, 0]]
    assert len(set(order)) == len(order)  # no image twice
    few, _ = deal_test(np.array([0, 0]), np.ones((5, 1), bool))
    assert few.tolist() == [0, 1, 0, 1, 0]  # fewer images than clients


def resident(name: str) -> int:
    """Kilobytes of the mapped file that are in this process's memory."""
    entries = Path("/proc/self/smaps").read_text().split(f"{name}\n")[1:]
    return sum(int(re.search(r"^Rss:\s+(\d+)", entry, re.MULTILINE)[1]) for entry in entries)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("wrapped", [lambda x: x, np.ascontiguousarray], ids=["mapped", "as a plain array"])
def test_images_in_a_mapped_file_leave_the_memory_as_they_are_stored(tmp_path, monkeypatch, wrapped):
    made = np.random.default_rng(0).integers(0, 256, (4_000, 1, 32, 32), dtype=np.uint8)
    np.save(tmp_path / "many.npy", made)
    x = wrapped(np.load(tmp_path / "many.npy", mmap_mode="r"))
    monkeypatch.setattr(federated_writer, "CHUNK_BYTES", 2**20)
    kept = []
    order = np.random.default_rng(1).permutation(4_000)
    stored = chunked(
        Split(x, np.arange(4_000)), order, np.arange(0, 4_001, 100), put=lambda pair: kept.append(pair) or pair
    )
    assert len(stored.objects) > 3
    assert resident("many.npy") < 100
    assert np.array_equal(np.concatenate([pixels for pixels, _ in kept]), made[order])  # and nothing is lost


def test_changes_to_a_mapped_file_that_are_not_written_stay(tmp_path):
    """A file mapped copy-on-write has what its owner changed in memory only."""
    np.save(tmp_path / "own.npy", np.zeros((50, 1, 8, 8), np.uint8))
    x = np.load(tmp_path / "own.npy", mmap_mode="c")
    x[:] = 7
    chunked(Split(x, np.arange(50)), None, np.array([0, 25, 50]), put=lambda pair: pair)
    assert (x == 7).all()
