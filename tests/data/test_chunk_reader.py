import numpy as np
import pytest

from raysim.data import federated
from raysim.data.federated import ChunkReader, Chunks


@pytest.fixture
def fetched(monkeypatch):
    """What was fetched from the store, object by object."""
    seen = []

    def fetch(reference):
        seen.append(int(reference[1][0]))
        return reference

    monkeypatch.setattr(federated, "fetch", fetch)
    return seen


def chunks() -> Chunks:
    """Two objects: items 0 and 1 in the first, item 2 in the second; a label is the number of its item."""
    first = np.arange(8).reshape(4, 2), np.array([0, 0, 1, 1])
    second = np.arange(8, 12).reshape(2, 2), np.array([2, 2])
    return Chunks([first, second], np.array([0, 0, 1]), np.array([0, 2, 0]), np.array([2, 4, 2]))


def test_an_object_is_fetched_once_for_items_in_a_row(fetched):
    reader = ChunkReader(chunks())
    images = {0: [[0, 1], [2, 3]], 1: [[4, 5], [6, 7]], 2: [[8, 9], [10, 11]]}
    for item in (0, 1, 0, 2, 2, 1):
        x, y = reader.read(item)
        assert y.tolist() == [item, item]
        assert x.tolist() == images[item]
    assert fetched == [0, 2, 0]
    reader.release()
    reader.read(1)
    assert fetched == [0, 2, 0, 0]


def test_only_one_object_is_kept(fetched):
    reader = ChunkReader(chunks())
    reader.read(0)
    reader.read(2)
    assert reader.number == 1
    assert reader.kept[1].tolist() == [2, 2]
    reader.read(0)
    assert fetched == [0, 2, 0]
