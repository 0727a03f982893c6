"""The quick version of `make chaos`: a few faults of each kind, with real processes and clusters."""

import pytest

from tests.faults.chaos import conduct
from tests.faults.clusters import nodes, rpc
from tests.faults.killed import clients, server


@pytest.mark.parametrize(
    ("scenario", "counts"),
    [
        (clients, {"kills": 5, "rounds": 3}),
        (server, {"kills": 3, "phases": ("receive", "generator", "checkpoint")}),
        (rpc, {"tries": 1}),
        (nodes, {"rounds": 15}),
    ],
    ids=["clients", "server", "rpc", "nodes"],
)
def test_it_ends_as_if_nothing_had_happened(tmp_path, scenario, counts):
    assert conduct(scenario, tmp_path / "lab", **counts).problems == []
