"""The shared synthetic dataset in the object store: immutable, outliving the clients that made it, and large."""

import numpy as np
import pytest
import ray

from raysim.data.synthetic_tables import column, images_of, table_digest
from raysim.engine.in_process import InProcess
from raysim.engine.ray_runner.cluster import worker_environment
from tests.simulate import SYNTHESIS, blobs, comparable, simulate, simulate_on_ray

IMAGES = 100  # that every client makes


@pytest.fixture(scope="module")
def large_ray():
    """A Ray whose object store holds the larger dataset with everything on its way to it."""
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, object_store_memory=4 * 2**30,
        logging_level="ERROR", runtime_env={"env_vars": worker_environment()},
    )  # fmt: skip
    yield
    ray.shutdown()


@pytest.mark.usefixtures("large_ray")
class TestSharedDataset:
    def test_nobody_can_write_through_a_reader(self):
        settings = SYNTHESIS | {"rounds": 4}
        here = simulate(**settings)
        there = simulate_on_ray(**settings | {"method": "hfmds+fedpa+tests.parts.vandal"}, actors=2)
        assert there.model_sha256 == here.model_sha256
        assert table_digest(there.shared["hfmds"]) == table_digest(here.shared["hfmds"])

    def test_it_outlives_the_clients_that_made_it(self, tmp_path):
        """The only client actor dies twice in round 2, after it synthesised; the clients go on with what it made."""
        for fuse in "ab":
            (tmp_path / fuse).touch()
        settings = SYNTHESIS | {"rounds": 3, "active": 10}
        method = "hfmds+fedpa+tests.parts.doomed"
        killed = simulate_on_ray(**settings | {"method": method, "doomed.fuses": str(tmp_path)}, actors=1)
        undisturbed = simulate(runner=InProcess(), **settings)
        assert [line["failures"] for line in killed.history] == [0, 2, 0]
        assert comparable(killed) == comparable(undisturbed)
        assert table_digest(killed.shared["hfmds"]) == table_digest(undisturbed.shared["hfmds"])

    # The larger one is 1.2 GB.
    @pytest.mark.slow
    @pytest.mark.parametrize("clients", [100, 1000])
    def test_many_clients_times_100_images(self, clients):
        dataset = blobs(train=clients * IMAGES, test=100, classes=10, shape=(3, 32, 32))
        result = simulate_on_ray(
            dataset, actors=2, method="hfmds", clients=clients, active=10, partition="iid", rounds=1,
            **{"hfmds.layer": "features", "hfmds.steps": 2, "hfmds.per_client": IMAGES},
        )  # fmt: skip
        table = result.shared["hfmds"]
        assert images_of(table).shape == (clients * IMAGES, 3, 32, 32)
        assert np.array_equal(np.bincount(column(table, "client")), np.full(clients, IMAGES))
        assert np.isfinite(images_of(table)).all()
        assert np.isfinite(result.history[0]["psnr"])
