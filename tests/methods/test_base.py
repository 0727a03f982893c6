import pytest
import torch

from raysim.engine.failures import ClientFailure
from raysim.methods.base import Upload
from tests.simulate import simulate


def test_each_rows_and_metadata_are_one_namespace():
    upload = Upload(each={"a": 1}, rows={"b": torch.zeros(2, 3)}, metadata={"c": 0.5})
    assert upload.client_by_client().keys() == {"a", "b", "c"}
    for first, second in (("each", "rows"), ("each", "metadata"), ("rows", "metadata")):
        twice = Upload(**{first: {"labels": torch.zeros(2)}, second: {"labels": torch.ones(2)}})
        assert "in another of each, rows and metadata" in twice.twice()


def test_a_method_that_uploads_a_name_twice_is_told_which(monkeypatch):
    from tests.parts.everything import Everything

    def end(self, client):
        return Upload(each={"visits": 1}, metadata={"visits": 2})

    monkeypatch.setattr(Everything, "end", end)
    with pytest.raises(ClientFailure, match=r"client \d+ failed in round 1 .*upload has 'visits' in metadata"):
        simulate(method="tests.parts.everything", client_retries=0)
