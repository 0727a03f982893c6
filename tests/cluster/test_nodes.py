"""The same hash on several nodes as in one process."""

import os
import signal
import time

import pytest
import ray
from ray.cluster_utils import Cluster

from raysim.engine import cluster, crew
from raysim.engine.checkpoint import Checkpoints
from raysim.engine.plan import make_plan
from raysim.engine.saver import Saver
from raysim.engine.shared import table_digest
from tests.simulate import SYNTHESIS, comparable, configure, simulate, simulate_on_ray

EVERYTHING = "tests.parts.everything"  # all hooks at once


@pytest.fixture
def three_nodes():
    """A head and two more, with a CPU each; no server and no driver on the last two."""
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80 * 2**20})
    try:
        added = [nodes.add_node(num_cpus=1, object_store_memory=80 * 2**20) for _ in range(2)]
        environment = {"env_vars": cluster.worker_environment()}
        ray.init(address=nodes.address, logging_level="ERROR", runtime_env=environment)
        nodes.wait_for_nodes()
        yield nodes, added
    finally:
        ray.shutdown()
        nodes.shutdown()


@pytest.mark.usefixtures("three_nodes")
def test_three_nodes():
    plan = make_plan(configure(), cluster.nodes(), client_bytes=2**20)
    assert [slot.actors for slot in plan.slots] == [1, 1, 1]
    assert comparable(simulate_on_ray(method=EVERYTHING)) == comparable(simulate(method=EVERYTHING))
    here, there = simulate(**SYNTHESIS), simulate_on_ray(**SYNTHESIS)
    assert comparable(there) == comparable(here)
    assert table_digest(there.shared["hfmds"]) == table_digest(here.shared["hfmds"])


@pytest.mark.parametrize(
    "settings", [{}, pytest.param({"actor_per_client": True}, marks=pytest.mark.slow)], ids=["shared", "pinned"]
)
def test_a_node_that_held_states_is_lost_and_another_joins(three_nodes, tmp_path, monkeypatch, settings):
    """The run goes back to its last checkpoint for what was lost, and uses the new node."""
    monkeypatch.setattr(crew, "NODE_SECONDS", 0.5)
    nodes, (_, doomed) = three_nodes
    settings = {"method": EVERYTHING, "active": 10, "rounds": 8} | settings
    events = []

    def on_round(line):
        if line["round"] == 2 and ("node_lost",) not in events:
            events.append(("node_lost",))
            os.kill(doomed.all_processes["raylet"][0].process.pid, signal.SIGKILL)
        if line["round"] == 3:  # such short rounds would all be over before Ray notices
            while all(node["Alive"] for node in ray.nodes()):
                time.sleep(0.1)
        if line["round"] == 5 and ("node_joined",) not in events:
            events.append(("node_joined",))
            nodes.add_node(num_cpus=4, object_store_memory=80 * 2**20)

    def saver(runner):
        runner.on_event = lambda kind, **details: events.append((kind, details))
        return Saver(Checkpoints(tmp_path / "checkpoints", {}), runner, runner.on_event)

    disturbed = simulate_on_ray(**settings, saver=saver, on_round=on_round)
    assert comparable(disturbed) == comparable(simulate(**settings | {"actor_per_client": False}))
    assert [line["round"] for line in disturbed.history] == list(range(1, 9))
    told = {event[0]: event[1] for event in events if len(event) > 1}
    assert told["node_lost"]["actors"]
    assert told["node_joined"]["actors"]
