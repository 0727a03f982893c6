"""Devices that are broken or full: the actor's death, never a client's fault, by every name that errors have."""

import os
import re
from dataclasses import replace

import pytest
import torch

from raysim.engine.failures import BrokenDevice, OutOfMemory, RunFailure
from raysim.engine.ray_runner import cluster
from raysim.engine.ray_runner.actors import ServerActor, show_only
from raysim.engine.ray_runner.plan import make_plan
from raysim.engine.ray_runner.runner import RayRunner
from raysim.training.device import trouble_of
from tests.faults.test_clients import DOOMED, fuses, watched
from tests.faults.test_server import saver_in
from tests.simulate import comparable, configure, simulate, simulate_on_ray, told_to

FULL = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    torch.AcceleratorError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("GET was unable to find an engine to execute this computation"),
    RuntimeError("HIP error: out of memory"),
]
BROKEN = [
    torch.AcceleratorError("CUDA error: device-side assert triggered"),
    torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
]


@pytest.mark.parametrize("error", FULL, ids=str)
def test_a_full_device_by_every_name(error):
    assert trouble_of(error) == "memory"


@pytest.mark.parametrize("error", BROKEN, ids=str)
def test_a_broken_device_by_every_name(error):
    assert trouble_of(error) == "broken"


@pytest.mark.parametrize("error", [ValueError("CUDA error"), RuntimeError("a shape is wrong"), MemoryError()], ids=repr)
def test_other_errors_are_no_device_s(error):
    assert trouble_of(error) is None


@pytest.mark.parametrize("how", ["device", "memory"])
def test_no_client_is_blamed_for_its_device_and_none_is_skipped(how):
    """With `skip`, a broken device would skip one client after another, and the run would end as if nothing were."""
    runner, events = watched()
    with pytest.raises((torch.AcceleratorError, torch.OutOfMemoryError)):
        simulate(runner=runner, **DOOMED, on_client_error="skip", **{"doomed.how": how})
    assert events == []


def test_where_memory_was_full_it_is_tried_once_more_with_what_was_kept_for_speed_given_back(tmp_path):
    runner, events = watched()
    result = simulate(runner=runner, **DOOMED, **{"doomed.how": "memory"}, **fuses(tmp_path, 1))
    assert comparable(result) == comparable(simulate(active=10))
    assert events == []  # it was not lost


@pytest.mark.usefixtures("local_ray")
def test_an_actor_whose_device_is_broken_is_replaced(tmp_path):
    events = []
    settings = {"actors": 2, "on_client_error": "skip", "doomed.how": "device"}
    result = simulate_on_ray(on_event=told_to(events), **DOOMED, **settings, **fuses(tmp_path, 1))
    assert comparable(result) == comparable(simulate(active=10))
    assert [kind for kind, _ in events] in (["actor_lost"], ["actor_lost", "actor_back"])  # the run may end before
    assert re.match(r"the device is broken in train \(client-actor-\d .*GPU \d\): CUDA error", events[0][1]["reason"])


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("times", [1, 2])
def test_a_server_without_room_on_its_gpu_takes_that_of_its_neighbours(tmp_path, times):
    """One for every time; the others do its work, and the run goes on from its last checkpoint."""
    events = []
    (tmp_path / "fuses").mkdir()
    doom = {"doomed.how": "memory", "doomed.server": True, **fuses(tmp_path / "fuses", times)}
    config = configure(active=10, actors=3)
    one_gpu = [replace(node, gpus=1) for node in cluster.nodes()]
    runner = RayRunner(make_plan(config, one_gpu, client_bytes=2**20), config, on_event=told_to(events))
    result = simulate(runner=runner, saver=saver_in(tmp_path), **DOOMED, **doom)
    assert comparable(result) == comparable(simulate(active=10))
    told = [(kind, details) for kind, details in events if kind in ("server_lost", "actor_given_up", "actor_lost")]
    assert [kind for kind, _ in told] == ["server_lost", "actor_given_up"] * times  # no client actor is blamed
    assert "no room on the server's GPU" in told[0][1]["reason"]
    assert [details["actor"] for kind, details in told if kind == "actor_given_up"] == [2, 1][:times]
    assert sum(line["failures"] for line in result.history) == times


class Host(ServerActor.__ray_metadata__.modified_class):
    """A server's host without Ray."""

    def __init__(self, held):
        self.name, self.gpus, self.held = "server", ["MIG-7"], held


@pytest.mark.parametrize(("error", "kind"), [(FULL[2], OutOfMemory), (BROKEN[0], BrokenDevice)])
def test_the_servers_device_has_a_name_too(error, kind):
    def aggregate():
        raise error

    with pytest.raises(kind, match=r"in aggregate \(server, GPU MIG-7\): ") as caught:
        Host(type("Held", (), {"aggregate": staticmethod(aggregate)})()).call("aggregate")
    assert isinstance(caught.value, RunFailure)
    assert "in aggregate" in caught.value.traceback


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({}, None),
        ({"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}, "GPU-ab12"),
        ({"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "2"}, "2"),
        ({"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "GPU-ab12,GPU-cd"}, "GPU-ab12"),
    ],
)
def test_an_actor_sees_its_own_gpu_alone_also_where_ray_hides_none(monkeypatch, environment, shown):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # so that it is put back, whatever becomes of it
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    show_only(["GPU-ab12"])
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == shown
