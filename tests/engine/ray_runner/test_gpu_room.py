"""The memory of GPUs before actors are planned, with stand-ins for what CUDA would say."""

from types import SimpleNamespace

import pytest
import ray
import torch

from raysim.engine import gpu_memory
from raysim.engine.ray_runner import cluster, gpu_room
from raysim.engine.ray_runner.actors import ClientActor
from raysim.engine.ray_runner.plan import Room
from raysim.training import device
from tests.simulate import configure

GIB = 2**30
SHAPE = (1, 8, 8)


def test_a_client_and_its_context_are_measured(monkeypatch):
    monkeypatch.setattr(gpu_memory, "prepare_torch", lambda config: SimpleNamespace(type="cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda of: (10 * GIB, 16 * GIB))
    worked = []
    monkeypatch.setattr(gpu_memory, "work", lambda *given: worked.append(given))
    monkeypatch.setattr(gpu_memory, "peak_memory", lambda of: GIB)
    room = gpu_memory.measure(configure(), SHAPE, 5)
    assert room == Room(10 * GIB, device.CONTEXT_BYTES + 5 * GIB // 4)
    assert len(worked) == 1
    several = gpu_memory.measure(configure(fuse=4), SHAPE, 5)
    assert several.needed == device.CONTEXT_BYTES + 5 * GIB


def test_without_a_gpu_there_is_nothing_to_measure():
    assert gpu_memory.measure(configure(), SHAPE, 5) is None


@pytest.mark.parametrize(
    ("settings", "images"),
    [({}, 8), ({"method": "fedprox"}, 16), ({"method": "fixmatch", "labelled": 4, "unlabelled_batch": 20}, 36)],
)
def test_what_is_measured_is_a_training_of_the_runs_own_size_and_an_evaluation(monkeypatch, settings, images):
    sizes = []
    train = gpu_memory.train
    monkeypatch.setattr(gpu_memory, "train", lambda client: sizes.append(client.batch_sizes) or train(client))
    gpu_memory.work(configure(**settings), SHAPE, 5, torch.device("cpu"))
    assert sizes == [[images, images]]


class Looking:
    """A stand-in for the task that looks at a GPU: what it finds, one after the other."""

    def __init__(self, *found):
        self.found, self.asked = list(found), 0

    def options(self, **_):
        return self

    def remote(self, *_):
        self.asked += 1
        return ray.put(self.found.pop(0))


@pytest.mark.usefixtures("local_ray")
class TestOnACluster:
    def test_logical_gpus_have_no_memory_to_plan_by(self):
        nodes = cluster.nodes()
        assert gpu_room.with_room(configure(), nodes, SHAPE, 5) == nodes
        assert ray.get(gpu_room._look.remote(configure(), SHAPE, 5)) is None

    def test_the_fullest_gpu_of_a_node_counts(self, monkeypatch):
        monkeypatch.setattr(gpu_room, "machine_has_gpu", lambda: True)
        rooms = [Room(4, 2), Room(3, 1), Room(9, 1), Room(9, 1)]
        monkeypatch.setattr(gpu_room, "_look", Looking(*rooms))
        (node,) = gpu_room.with_room(configure(), cluster.nodes(), SHAPE, 5)
        assert node.room == Room(3, 2)

    @pytest.mark.parametrize(
        "settings", [{"actors": 2}, {"actors_per_gpu": 2}, {"gpu_fraction": 0.2}, {"actor_per_client": True}], ids=str
    )
    def test_nobody_is_asked_where_the_number_is_given(self, monkeypatch, settings):
        monkeypatch.setattr(gpu_room, "_look", looking := Looking())
        nodes = cluster.nodes()
        assert gpu_room.with_room(configure(**settings), nodes, SHAPE, 5) == nodes
        assert looking.asked == 0

    def test_a_gpu_that_somebody_else_holds_stays_unknown(self, monkeypatch):
        monkeypatch.setattr(gpu_room, "SECONDS", 1.0)
        monkeypatch.setattr(gpu_room, "machine_has_gpu", lambda: True)
        holder = ray.remote(num_gpus=4, num_cpus=0)(type("Holder", (), {"ready": lambda self: True})).remote()
        ray.get(holder.ready.remote())
        nodes = cluster.nodes()
        assert gpu_room.with_room(configure(), nodes, SHAPE, 5) == nodes
        ray.kill(holder)


@pytest.mark.parametrize(("share", "limits"), [(0.45, [0.45]), (0.0, [])])
def test_a_client_actor_is_held_to_its_share(monkeypatch, share, limits):
    """The actor's class without Ray, around a stand-in for the worker."""
    told = []
    held = SimpleNamespace(limit_memory=told.append)
    module = SimpleNamespace(Held=lambda config, data, use_gpu: held)
    monkeypatch.setattr("importlib.import_module", lambda name: module)
    monkeypatch.setattr(ray, "get_gpu_ids", lambda: ["0"])
    ClientActor.__ray_metadata__.modified_class("stand.in:Held", None, None, "client-actor-0 gpu 0.45", None, share)
    assert told == limits


def test_torchs_memory_grows_in_place_unless_the_user_says_otherwise(monkeypatch):
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    assert cluster.worker_environment()["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    told = cluster.worker_environment()
    assert told["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"
    assert "PYTORCH_ALLOC_CONF" not in told
