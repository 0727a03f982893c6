"""Precision and compilation: options made for GPUs, as far as a CPU can run them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from raysim.engine.worker import Worker
from raysim.errors import InputError, RaysimError
from raysim.training import device, drivers
from tests.simulate import SYNTHESIS, blobs, comparable, configure, federated, simulate

CPU = torch.device("cpu")


def apart(one, other) -> float:
    """How far two final models are from each other, relative to how long they are."""
    a, b = (np.concatenate([v.ravel() for v in result.models[0].values()]) for result in (one, other))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize("fuse", [1, 3])
def test_bf16_trains_nearly_the_same_and_reproducibly(fuse):
    settings = SYNTHESIS | {"fuse": fuse, "fedpa.lambda_ge": 1, "fedpa.lambda_po": 0.1}
    whole, half = simulate(**settings), simulate(**settings, precision="bf16")
    assert 0 < apart(half, whole) < 0.05
    assert comparable(half) == comparable(simulate(**settings, precision="bf16"))


def test_tf32_changes_nothing_on_a_cpu():
    assert comparable(simulate(precision="tf32")) == comparable(simulate())


@pytest.mark.slow  # the compiler takes its time
def test_a_compiled_step_trains_nearly_the_same():
    whole, compiled = simulate(), simulate(compile="yes")
    assert apart(compiled, whole) < 1e-4


def test_what_cannot_be_is_said():
    with pytest.raises(InputError, match="--fuse: it has a step of its own"):
        configure(fuse=4, compile="yes")


def test_a_gpu_that_torch_does_not_see_is_an_error_and_none_at_all_is_not(monkeypatch, tmp_path):
    """Ray's GPUs are logical where the machine has none."""
    monkeypatch.setattr(drivers, "DRIVERS", (str(tmp_path / "nvidiactl"),))
    config = configure()
    assert device.prepare_torch(config) == torch.device("cpu")
    (tmp_path / "nvidiactl").touch()
    with pytest.raises(RaysimError, match=r"^there is a GPU here and torch sees none: .* install a torch"):
        device.prepare_torch(config)
    assert device.prepare_torch(config, use_gpu=False) == torch.device("cpu")


def test_the_host_is_no_part_of_a_gpus_fingerprint(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda of: "A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda of: (8, 0))
    monkeypatch.setattr(torch.version, "hip", "6.2")
    found = device.fingerprint(torch.device("cuda", 0))
    assert (found["device"], found["capability"], found["rocm"]) == ("A100", "8.0", "6.2")
    assert not {"cpu", "machine", "threads"} & found.keys()
    assert device.fingerprint(CPU).keys() >= {"cpu", "machine", "threads", "loops", "convolutions", "products"}


def test_a_cpus_arithmetic_is_the_same_each_time_and_of_the_precision_that_is_used():
    found = device.fingerprint(CPU)
    assert device.fingerprint(CPU) == found
    half = device.fingerprint(CPU, "bf16")
    assert half == found | {"bf16": half["bf16"]}
    assert half["bf16"] not in found.values()
    assert reported_by_an_actor("bf16") == half


def reported_by_an_actor(precision: str) -> dict[str, object]:
    """The fingerprint that a client actor of a run with this precision reports."""
    config = configure(precision=precision)
    return Worker(config, federated(config, blobs())).hello().fingerprint


@pytest.mark.parametrize(
    ("total", "share", "fraction"),
    [(16 * 2**30, 0.45, 0.45 - 500 / 2**14), (2**30, 0.45, 0.225)],  # of a small one, half of its share in any case
)
def test_an_actor_takes_no_more_of_a_gpu_than_its_share(monkeypatch, total, share, fraction):
    """Its CUDA context included, which torch's limit does not know."""
    limits = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda of: SimpleNamespace(total_memory=total))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: limits.append(given))
    device.limit_memory(CPU, share)
    assert limits == []
    device.limit_memory(torch.device("cuda", 0), share)
    assert limits == [(pytest.approx(fraction), torch.device("cuda", 0))]


def test_peak_memory_is_that_of_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda of: 7)
    assert device.peak_memory(torch.device("cuda", 0)) == 7
    assert device.peak_memory(CPU) == 0


def test_only_whole_batches_are_compiled(monkeypatch):
    """Which shapes are depends on the configuration alone, not on what an actor saw first."""
    seen = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: lambda *given: (seen.append("compiled"), *given[1:]))
    monkeypatch.setattr(device.shutil, "which", lambda name: name)
    forward = device.compiled(lambda *given: (seen.append("as it is"), *given[1:]), configure(compile="yes"), CPU)
    for size in (8, 3, 8, 20):  # --batch-size is 8
        forward(None, torch.zeros(size), torch.zeros(size))
    forward(None, torch.zeros(16), torch.zeros(8))  # with images that a method adds
    assert seen == ["compiled", "as it is", "compiled", "as it is", "compiled"]
