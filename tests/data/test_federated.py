"""Data in the object store: dealt right, read without copies, and never written through a reader."""

import numpy as np
import pytest
import ray
import torch

from raysim.data import Split
from raysim.data import federated_writer as store
from raysim.data.federated_writer import chunked
from raysim.data.normalisation import Normalisation
from raysim.tensors import to_device
from tests.data.dealing import partition
from tests.simulate import blobs, configure, federated


def test_every_client_reads_its_own_samples_from_few_chunks(monkeypatch):
    dataset = blobs(train=400)
    monkeypatch.setattr(store, "CHUNK_BYTES", 64 * 50)  # 50 images
    dealt = partition(dataset.train.y, 5, kind="dirichlet", clients=37, seed=1, beta=0.3)
    chunks = chunked(dataset.train, dealt.order, dealt.offsets, put=lambda value: value)
    assert 8 <= len(chunks.objects) <= 20
    for client in range(37):
        x, y = chunks.read(client)
        assert np.array_equal(x, dataset.train.x[dealt.indices(client)])
        assert np.array_equal(y, dataset.train.y[dealt.indices(client)])


def test_one_client_larger_than_a_chunk(monkeypatch):
    monkeypatch.setattr(store, "CHUNK_BYTES", 64)
    split = Split(np.arange(640, dtype=np.uint8).reshape(10, 1, 8, 8), np.arange(10))
    chunks = chunked(split, None, np.array([0, 9, 10]), put=lambda value: value)
    assert len(chunks.objects) == 2
    assert np.array_equal(chunks.read(0)[1], np.arange(9))


def test_normalisation_is_mean_and_deviation_per_channel():
    split = blobs(shape=(3, 8, 8)).train
    found = Normalisation.of(split.x)
    assert np.allclose(found.mean, split.x.mean((0, 2, 3)))
    assert np.allclose(found.std, split.x.std((0, 2, 3)))
    assert Normalisation.half(3) == Normalisation((127.5,) * 3, (127.5,) * 3)
    assert Normalisation.of(np.full((4, 1, 2, 2), 9, np.uint8)) == Normalisation((9.0,), (1.0,))


@pytest.mark.usefixtures("local_ray")
class TestInRay:
    def test_readers_share_memory_and_cannot_write_through_it(self):
        data = federated(configure(), blobs(), ray.put)
        first, second = data.clients.read(2), data.clients.read(2)
        assert not first[0].flags.owndata
        assert np.shares_memory(first[0], second[0])
        with pytest.raises(ValueError, match="read-only"):
            first[0][0] = 0

    def test_a_tensor_made_from_the_store_is_a_copy(self):
        """torch.from_numpy would hand out the shared memory itself, writable."""
        reference = ray.put({"a": np.ones(1000, dtype=np.float32), "b": [np.zeros(3)]})
        tensors = to_device(ray.get(reference), torch.device("cpu"))
        tensors["a"].zero_()
        tensors["b"][0].add_(1)
        assert ray.get(reference)["a"].all()
        assert not ray.get(reference)["b"][0].any()
