"""The quick version of `make chaos`: a few faults of each kind in real processes.

What is lost with a node is in tests/cluster/test_nodes.py, with the driver in test_resume.py and test_process.py.
"""

import pytest

from tests.faults.chaos import conduct
from tests.faults.clusters import memory, rpc
from tests.faults.killed import clients, server


@pytest.mark.parametrize(
    ("scenario", "counts"),
    [
        (clients, {"kills": 5, "rounds": 3}),
        pytest.param(server, {"kills": 3, "phases": ("receive", "generator", "checkpoint")}, marks=pytest.mark.slow),
        pytest.param(rpc, {"tries": 1}, marks=pytest.mark.slow),
        pytest.param(memory, {"rounds": 1}, marks=pytest.mark.slow),
    ],
    ids=["clients", "server", "rpc", "memory"],
)
def test_it_ends_as_if_nothing_had_happened(tmp_path, scenario, counts):
    assert conduct(scenario, tmp_path / "lab", **counts).problems == []
