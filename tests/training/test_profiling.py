"""Operations are counted on the real work: against sums by hand for a multi-layer perceptron 64 → 64 → 5."""

import json

import pytest
import torch

from raysim.config import resolve
from raysim.observe.progress import Reporter
from raysim.single_run import gflops_per_round, run
from raysim.training.profiling import FlopCounter
from tests.simulate import blobs, simulate

FORWARD = 2 * (64 * 64 + 64 * 5)  # per image; 2 per multiply-add
ONE = {"clients": 1, "active": 1, "partition": "iid", "rounds": 2}


def test_products_and_convolutions_with_their_gradients():
    x = torch.randn(3, 4, requires_grad=True)
    weight = torch.randn(4, 5, requires_grad=True)
    with FlopCounter() as counter:
        (x @ weight).sum().backward()
    assert counter.total == 3 * 2 * 3 * 4 * 5
    with FlopCounter() as counter:
        torch.nn.functional.conv2d(torch.randn(2, 3, 8, 8), torch.randn(6, 3, 5, 5))
    assert counter.total == 2 * 2 * 6 * 3 * 5 * 5 * 4 * 4


def test_training_is_counted_in_the_last_round():
    first, last = (line["gflops"] for line in simulate(blobs(train=100), **ONE, local_epochs=2).history)
    assert first == {}
    # Forward, weight gradients of both layers, and the head's input gradient.
    assert last["training"] * 1e9 == pytest.approx(2 * 100 * (2 * FORWARD + 2 * 64 * 5))


def test_synthesis_is_counted_apart_and_spread_over_the_rounds():
    settings = {"method": "hfmds", "hfmds.first": 2, "hfmds.steps": 7, "hfmds.per_client": 30}
    settings |= {"hfmds.layer": "features", "hfmds.match": "none", "hfmds.label_weight": 1}
    history = simulate(blobs(train=100), **ONE | settings).history
    # 7 steps forward and back to the image, without weight gradients; then forward again, for what is recorded. Images
    # of 4×4, 2×2 and 1×1 are enlarged to 8×8, downwards and then across, and the gradient is made as small.
    levels = 2 * sum(2 * (8 * n * n + 8 * n * 8) for n in (4, 2, 1))
    synthesis = 30 * FORWARD + 7 * 30 * (2 * FORWARD + levels)
    assert history[1]["gflops"]["hfmds"] * 1e9 == pytest.approx(synthesis)
    per_round = gflops_per_round(history)
    assert per_round["hfmds"] * 1e9 == pytest.approx(synthesis / 2, abs=1e5)
    real = 2 * FORWARD + 2 * 64 * 5
    assert per_round["training"] * 1e9 == pytest.approx(2 * 100 * real, abs=1e5)  # as many synthetic images as real


def test_unequal_clients_are_scaled_to_the_mean():
    dataset = blobs(train=101)
    line = simulate(dataset, clients=2, active=2, partition="dirichlet", beta=0.3, rounds=1).history[0]
    assert line["gflops"]["training"] * 1e9 == pytest.approx(50.5 * (2 * FORWARD + 2 * 64 * 5))


def test_a_profile_is_a_table_and_a_chrome_trace_and_changes_nothing(tmp_path):
    settings = {
        "method": "hfmds", "hfmds.layer": "features", "hfmds.steps": 2, "model": "mlp", "clients": 4, "rounds": 2,
        "train_size": 60, "test_size": 20, "image_size": 16, "in_process": True,
    }  # fmt: skip
    hashes = []
    for profile in (True, False):
        config = resolve([("test", settings | {"profile": profile, "out": str(tmp_path / f"{profile}")})])
        _, summary = run(config, Reporter())
        hashes.append(summary["model_sha256"])
    assert hashes[0] == hashes[1]
    for name in ("training", "hfmds"):
        assert "addmm" in (tmp_path / "True" / "profile" / f"{name}.txt").read_text()
        assert json.loads((tmp_path / "True" / "profile" / f"{name}.json").read_text())["traceEvents"]
    assert not (tmp_path / "False" / "profile").exists()
