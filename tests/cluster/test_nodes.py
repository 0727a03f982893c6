"""The same hash on several nodes as in one process."""

import ray
from ray.cluster_utils import Cluster

from raysim.engine import cluster
from raysim.engine.plan import make_plan
from raysim.engine.shared import table_digest
from tests.simulate import SYNTHESIS, comparable, configure, simulate, simulate_on_ray

EVERYTHING = "tests.parts.everything"  # all hooks at once


def test_three_nodes():
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80 * 2**20})
    try:
        for _ in range(2):
            nodes.add_node(num_cpus=1, object_store_memory=80 * 2**20)
        environment = {"env_vars": cluster.worker_environment()}
        ray.init(address=nodes.address, logging_level="ERROR", runtime_env=environment)
        nodes.wait_for_nodes()
        plan = make_plan(configure(), cluster.nodes(), client_bytes=2**20)
        assert [slot.actors for slot in plan.slots] == [1, 1, 1]
        assert comparable(simulate_on_ray(method=EVERYTHING)) == comparable(simulate(method=EVERYTHING))
        here, there = simulate(**SYNTHESIS), simulate_on_ray(**SYNTHESIS)
        assert comparable(there) == comparable(here)
        assert table_digest(there.shared["hfmds"]) == table_digest(here.shared["hfmds"])
    finally:
        ray.shutdown()
        nodes.shutdown()
