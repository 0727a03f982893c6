"""What an actor hosts: the states of its clients, read as seldom as can be."""

import numpy as np

from raysim.engine import hosted_model
from raysim.engine.hosted_model import HostedModel
from tests.simulate import blobs, configure, federated


def test_an_object_of_many_states_is_read_once_for_all_its_clients(monkeypatch):
    """Reading it for every client anew costs the square of how many there are."""
    config = configure(method="scaffold")
    hosted = HostedModel(config, federated(config, blobs()))
    early = [(client, {"scaffold": {"c": np.full(2, client)}}) for client in range(50)]
    late = [(client, {"scaffold": {"c": np.full(2, -client)}}) for client in range(10)]
    fetched = []
    monkeypatch.setattr(hosted_model, "fetch", lambda reference: fetched.append(reference) or reference)
    states = dict.fromkeys(range(50), early) | dict.fromkeys(range(10), late)
    found = hosted.read_states(states)
    assert len(fetched) == 2
    assert [int(found[client]["scaffold"]["c"][0]) for client in (3, 12, 49)] == [-3, 12, 49]
    assert hosted.state_of(12, found)["scaffold"]["c"].tolist() == [12, 12]
    assert hosted.state_of(99, found) == {}
