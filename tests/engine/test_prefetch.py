"""The next clients' pixels are uploaded while the current ones train; with a stand-in for CUDA's second stream."""

import numpy as np
import pytest
import torch

from raysim.engine import client_work
from raysim.engine.prefetch import Prefetch
from raysim.engine.work_queue import WorkQueue
from tests.simulate import comparable, simulate


class Side:
    """Notes what is asked of it."""

    def __init__(self):
        self.log = []

    def upload(self, array):
        self.log.append("upload")
        return torch.tensor(array)

    def join(self, tensors):
        self.log.append("join")


@pytest.mark.parametrize("fuse", [1, 4])
def test_the_next_clients_are_uploaded_while_the_others_train(monkeypatch, fuse):
    side = Side()
    monkeypatch.setattr(client_work.Prefetch, "on", classmethod(lambda cls, device, read: cls(read, side)))
    kind = "raysim.training.fused" if fuse > 1 else "raysim.engine.client_work"
    module = __import__(kind, fromlist=["train"])
    train, take = module.train, WorkQueue.take
    # The whole pass in one call.
    monkeypatch.setattr(WorkQueue, "take", lambda queue, share: take(queue, 2.0, least=1e9))
    monkeypatch.setattr(module, "train", lambda *given: (side.log.append("train"), train(*given))[1])
    result = simulate(rounds=1, active=8, fuse=fuse)
    monkeypatch.undo()
    assert comparable(result) == comparable(simulate(rounds=1, active=8, fuse=fuse))
    alone = [*["upload"] * 2, "train", *["join", "upload", "upload", "train"] * 6, "join", "train"]
    together = [*["upload"] * 8, "train", *["join"] * 4, "train"]
    expected = alone if fuse == 1 else together  # all but the first are there before their turn
    assert side.log[: len(expected)] == expected  # afterwards operations are counted, of one client


def test_what_was_not_taken_is_let_go():
    prefetch = Prefetch(lambda client: (np.full(2, client), np.zeros(2)), Side())
    prefetch.begin([1, 2])
    prefetch.begin([3])
    assert list(prefetch.ahead) == [3]
    assert prefetch.take(3)[0].tolist() == [3, 3]
    assert isinstance(prefetch.take(1)[0], np.ndarray)
