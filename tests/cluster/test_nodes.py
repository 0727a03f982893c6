"""The same hash on several nodes as in one process."""

import os
import signal
import subprocess
import sys
import time

import pytest
import ray
from ray.cluster_utils import Cluster

from raysim.data.synthetic_tables import table_digest
from raysim.engine.ray_runner import cluster, doctor, placement
from raysim.engine.ray_runner import lifecycle as crew
from raysim.engine.ray_runner.plan import make_plan
from raysim.engine.ray_runner.ray_internals import draining_nodes
from raysim.engine.ray_runner.runner import RayRunner
from raysim.storage.checkpoint_writer import CheckpointWriter
from raysim.storage.checkpoints import Checkpoints
from tests.simulate import SYNTHESIS, comparable, configure, simulate, simulate_on_ray, told_to

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


def keeping(folder):
    """Makes what keeps a run's checkpoints in the folder."""
    return lambda runner: CheckpointWriter(Checkpoints(folder / "checkpoints", {}), runner, runner.on_event)


def test_gpus_of_one_type_are_used_alone_also_on_nodes_that_join(monkeypatch):
    """By the label that Ray gives to its nodes, here by hand."""
    monkeypatch.setattr(crew, "NODE_SECONDS", 0.0)
    small = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    head = small | {"num_gpus": 1, "labels": {cluster.GPU_TYPE: "T4"}}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    try:
        first = nodes.add_node(num_gpus=1, labels={cluster.GPU_TYPE: "A100"}, **small)
        ray.init(address=nodes.address, logging_level="ERROR", runtime_env={"env_vars": cluster.worker_environment()})
        nodes.wait_for_nodes()
        config = configure(gpu_type="A100", actors_per_gpu=1)
        plan = make_plan(config, cluster.nodes(), client_bytes=2**20)
        assert [slot.node for slot in plan.slots] == [first.node_id]
        place = placement.Placement(plan)
        place.reserve()
        nodes.add_node(num_gpus=1, labels={cluster.GPU_TYPE: "T4"}, **small)
        second = nodes.add_node(num_gpus=1, labels={cluster.GPU_TYPE: "A100"}, **small)
        nodes.wait_for_nodes()
        lost, joined = place.changes()
        assert lost == {}
        assert list(joined) == [second.node_id]
        place.release()
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


@pytest.mark.usefixtures("three_nodes")
def test_one_sum_and_one_list_of_uploads_per_node_reach_the_server_even_if_those_who_add_are_killed(monkeypatch):
    received: list[tuple[int, int]] = []  # sums and lists of uploads of each pass
    run = RayRunner.run

    def counted(self, work):
        answers = run(self, work)
        received.extend([(len(answers.sums), len(answers.uploads))] * work.over_clients)
        return answers

    monkeypatch.setattr(RayRunner, "run", counted)
    settings = {"method": EVERYTHING, "actors": 6, "active": 10}
    here = comparable(simulate(method=EVERYTHING, active=10))
    assert comparable(simulate_on_ray(**settings)) == here
    assert max(received) == (3, 3)  # of the passes that all nodes took part in
    received.clear()
    monkeypatch.setattr(placement, "WORKER", "tests.parts.doomed_adder:DoomedAdder")
    events = []
    assert comparable(simulate_on_ray(**settings, on_event=told_to(events))) == here
    lost = [details for kind, details in events if kind == "actor_lost"]
    assert lost
    assert all(details["clients"] == 0 for details in lost)  # nobody's work is done again
    assert max(sums for sums, _ in received) > 3  # the server adds what they left
    assert max(uploads for _, uploads in received) > 3


def test_the_work_moves_from_a_node_that_drains(three_nodes, tmp_path, monkeypatch):
    """Before it is gone: Ray says so when a node is preempted or scaled down."""
    monkeypatch.setattr(crew, "NODE_SECONDS", 0.0)
    nodes, (_, leaving) = three_nodes
    settings = {"method": EVERYTHING, "active": 10, "rounds": 4}
    events = []

    def on_round(line):
        if line["round"] == 2 and not draining_nodes():
            drain = ["drain-node", "--address", nodes.address, "--node-id", leaving.node_id]
            why = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a test"]
            command = [sys.executable, "-m", "ray.scripts.scripts", *drain, *why, "--deadline-remaining-seconds", "600"]
            subprocess.run(command, check=True, capture_output=True)

    moved = simulate_on_ray(**settings, saver=keeping(tmp_path), on_round=on_round, on_event=told_to(events))
    assert comparable(moved) == comparable(simulate(**settings))
    (told,) = [details for kind, details in events if kind == "node_draining"]
    assert told["node"] == leaving.node_id
    assert len(told["actors"]) == 1
    assert not any(kind in ("actor_lost", "node_lost") for kind, _ in events)


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

    disturbed = simulate_on_ray(**settings, saver=keeping(tmp_path), on_round=on_round, on_event=told_to(events))
    assert comparable(disturbed) == comparable(simulate(**settings | {"actor_per_client": False}))
    assert [line["round"] for line in disturbed.history] == list(range(1, 9))
    told = {event[0]: event[1] for event in events if len(event) > 1}
    assert told["node_lost"]["actors"]
    assert told["node_joined"]["actors"]


@pytest.mark.slow  # another cluster
def test_the_doctor_has_every_node_read_from_every_other(three_nodes):
    said, wrong = doctor.examine_transfers()
    assert said.startswith("transfers: 3 nodes × 3; ports between them: ")
    assert len(said.split(", ")) == 6  # two of each node
    assert wrong == []
    assert doctor._read._function([ray.put(b"something else")]) == ["other bytes than were given"]
