"""The plan on a live cluster: who sits on which GPU, and what is refused."""

import pytest
import ray

from raysim.engine.ray_runner import cluster
from raysim.engine.ray_runner import placement as places
from raysim.engine.ray_runner.plan import make_plan
from raysim.engine.ray_runner.runner import RayRunner
from raysim.errors import PlanError
from tests.simulate import blobs, configure, simulate

pytestmark = pytest.mark.usefixtures("local_ray")


def test_eight_actors_sit_two_on_each_of_four_gpus():
    config = configure(clients=100, active=10, actors=8, rounds=1)
    plan = make_plan(config, cluster.nodes(), client_bytes=2**20)
    pool = RayRunner(plan, config)
    simulate(blobs(train=800), pool, clients=100, active=10, actors=8, rounds=1)
    assert [pool.gpus.count([str(gpu)]) for gpu in range(4)] == [2, 2, 2, 2]
    assert pool.server_gpus == pool.gpus[0]
    assert "2 per GPU on 4 GPUs" in plan.describe()


def test_a_cluster_taken_by_others_is_refused(monkeypatch):
    monkeypatch.setattr(places, "PLACEMENT_SECONDS", 2)
    blocker = ray.remote(num_gpus=1, num_cpus=0)(type("Blocker", (), {"ready": lambda self: True})).remote()
    ray.get(blocker.ready.remote())
    config = configure(actors=8, rounds=1)
    pool = RayRunner(make_plan(config, cluster.nodes(), client_bytes=2**20), config)
    with pytest.raises(PlanError, match=r"no room for 8 client actors .*'GPU': 4.* free .*'GPU': 3.*fewer --actors"):
        simulate(blobs(), pool, actors=8, rounds=1)
    ray.kill(blocker)
