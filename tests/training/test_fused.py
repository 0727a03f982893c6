"""--fuse: the same training in fewer, larger operations; equal to rounding, and one hash however it is scheduled."""

from dataclasses import dataclass

import numpy as np
import pytest

from raysim.config import RunConfig, check
from raysim.data.synthetic_tables import images_of
from raysim.engine.failures import ClientFailure
from raysim.engine.in_process import InProcess
from raysim.errors import InputError
from raysim.methods.base import Part, can_fuse
from raysim.methods.fedprox import FedProx
from raysim.models import build
from tests.data.dealing import partition
from tests.simulate import SMALL, blobs, comparable, configure, simulate, simulate_on_ray

EVERYTHING = "tests.parts.everything"  # all hooks at once
UNEQUAL = {"active": 10, "fuse": 4}  # groups of 4, 4 and 2 clients


def update(result, model: str, shape) -> np.ndarray:
    """How far the run moved the global model, as one vector."""
    initial = build(model, shape, 5, seed=SMALL["seed"]).state_dict()
    floating = {k: v for k, v in result.models[0].items() if np.issubdtype(v.dtype, np.floating)}
    return np.concatenate([(v - initial[k].numpy()).ravel() for k, v in floating.items()])


def assert_equal_to_rounding(model="mlp", shape=(1, 8, 8), tolerance=1e-4, **settings):
    """Both ways; gives the fused run's result and the other's."""
    dataset = blobs(train=150, test=30, shape=shape)
    settings = {"rounds": 1, "model": model} | UNEQUAL | settings
    fused, single = simulate(dataset, **settings), simulate(dataset, **settings | {"fuse": 1})
    got, want = (update(result, model, shape) for result in (fused, single))
    assert np.linalg.norm(got - want) <= tolerance * np.linalg.norm(want)
    for ours, theirs in zip(fused.history, single.history, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-4)
        assert ours["terms"] == pytest.approx(theirs["terms"], rel=1e-3)
        assert (ours["bytes_up"], ours["bytes_down"]) == (theirs["bytes_up"], theirs["bytes_down"])
    return fused, single


def test_the_clients_here_have_unequal_steps_and_some_less_than_a_batch():
    sizes = partition(blobs(train=150).train.y, 5, kind="dirichlet", clients=10, seed=3, beta=0.5).sizes
    assert min(sizes) < SMALL["batch_size"]
    for first in (0, 4, 8):
        assert len({-(-size // SMALL["batch_size"]) for size in sizes[first : first + 4]}) > 1
        assert any(size % SMALL["batch_size"] for size in sizes[first : first + 4])


@pytest.mark.parametrize(
    "optimizer",
    [
        {"momentum": 0.9, "weight_decay": 1e-2},
        # Adam divides by the gradient's size: where that is rounding noise, so is the step.
        {"optimizer": "adam", "lr": 1e-3, "weight_decay": 1e-2, "tolerance": 2e-3},
    ],
    ids=["sgd", "adam"],
)
@pytest.mark.parametrize(
    ("model", "shape"), [("mlp", (1, 8, 8)), ("small-cnn", (1, 28, 28)), ("fedpa-cnn", (3, 8, 8))], ids=str
)
def test_the_update_is_that_of_one_client_after_the_other(model, shape, optimizer):
    """fedpa-cnn has batch-norm, whose statistics must be over each client's own samples."""
    assert_equal_to_rounding(model, shape, **optimizer)


@pytest.mark.parametrize(
    "settings", [{"local_epochs": 2}, {"local_steps": 5}, {"drop_last": True}, {"fuse": 64}], ids=str
)
def test_whatever_the_local_work_is(settings):
    assert_equal_to_rounding(**settings)


@pytest.mark.parametrize("settings", [
    {"method": "fedprox", "fedprox.mu": 1.0},
    {"method": "fedbn", "model": "fedpa-cnn", "evaluation": "clients"},
    {"method": "tests.parts.committee"},  # two models, trained by some of each group's clients
    {"method": EVERYTHING},
    {"method": f"fedprox+{EVERYTHING}", "weighting": "uniform"},
], ids=lambda settings: settings["method"])  # fmt: skip
def test_methods(settings):
    assert_equal_to_rounding(local_epochs=2, **settings)


@pytest.mark.parametrize(
    "method", ["fedpa", "fedpa_reference", "fedgen", "fedgen_reference", "hfmds", "hfmds+fedpa+fedprox"]
)
def test_methods_that_need_what_the_round_before_gave(method):
    synthesis = {"hfmds.every": 1, "hfmds.steps": 2, "hfmds.per_client": 10, "hfmds.layer": "features"}
    synthesis = synthesis if "hfmds" in method else {}
    fused, single = assert_equal_to_rounding(rounds=2, tolerance=1e-3, method=method, **synthesis)
    assert fused.history[-1]["terms"]
    if synthesis:  # the second ones are matched to prototypes of the first round's training
        ours, theirs = (images_of(result.shared["hfmds"]) for result in (fused, single))
        assert np.abs(ours - theirs).max() <= 1e-4


@pytest.mark.parametrize("settings", [
    {"method": "scaffold"},
    {"method": "scaffold+fedbn", "model": "fedpa-cnn", "evaluation": "clients"},
    {"method": "feddyn"},
    {"method": "feddyn+fedbn", "model": "fedpa-cnn", "evaluation": "clients"},
    {"method": "moon"},
    {"method": "moon", "model": "fedpa-cnn", "shape": (3, 8, 8)},
    {"method": "fedensemble"},
    {"method": "fedensemble", "fedensemble.mode": "models", "fedensemble.models": 3},
    {"method": "fedhkd", "fedhkd.noise": 0.1},
    {"method": "fedhkd_reference"},
    {"method": "naivemix"},
    {"method": "fedmix"},
    {"method": "fedmix", "model": "small-cnn", "shape": (1, 16, 16)},
    {"method": "fedmix", "model": "fedpa-cnn", "shape": (3, 8, 8)},
], ids=str)  # fmt: skip
def test_baselines(settings):
    assert_equal_to_rounding(rounds=2, **settings)


def test_equal_clients_cost_the_operations_they_cost_alone():
    fused, single = (simulate(partition="iid", active=10, rounds=1, fuse=fuse) for fuse in (5, 1))
    assert fused.history[0]["gflops"] == pytest.approx(single.history[0]["gflops"])


@pytest.fixture(scope="module")
def reference():
    return comparable(simulate(method=EVERYTHING, **UNEQUAL))


def test_one_hash_with_several_workers(reference):
    assert comparable(simulate(method=EVERYTHING, runner=InProcess(3), **UNEQUAL)) == reference


@pytest.mark.usefixtures("local_ray")
def test_one_hash_on_actors_one_of_which_is_killed(reference, tmp_path):
    (tmp_path / "once").touch()
    method = f"{EVERYTHING}+tests.parts.doomed"
    result = simulate_on_ray(method=method, actors=2, **UNEQUAL, **{"doomed.fuses": str(tmp_path)})
    assert [line["failures"] for line in result.history] == [0, 1, 0]
    assert comparable(result) == reference


@pytest.mark.parametrize("how", ["raises", "nan"])
def test_a_client_that_fails_in_a_group_is_named(how):
    with pytest.raises(ClientFailure, match=r"^client 3 failed in round 2 "):
        simulate(method="tests.parts.doomed", **UNEQUAL, **{"doomed.how": how})


def test_a_step_that_fails_names_the_group(monkeypatch):
    monkeypatch.setattr(FedProx, "pull", lambda part, clients, weights, start: 1 / 0)
    with pytest.raises(ClientFailure, match=r"^one of the clients 0, 1, 2, 3 failed in round 1 .*ZeroDivisionError"):
        simulate(method="fedprox", **UNEQUAL)


def test_a_client_of_its_own_actor_cannot_be_fused():
    with pytest.raises(InputError, match=r"^--fuse: --actor-per-client leaves an actor one client; use --fuse 1$"):
        configure(fuse=2, actor_per_client=True)


@dataclass(frozen=True)
class Alone(Part):
    """Has a loss for one client."""

    def loss(self, client, step):
        return step.ce


@dataclass(frozen=True)
class Both(Part):
    """Has a loss and a fused form of it."""

    def loss(self, client, step):
        return step.ce

    def fused_loss(self, clients, step):
        return step.ce


@dataclass(frozen=True)
class Bolder(Both):
    """Has another loss than the one it has a fused form of."""

    def loss(self, client, step):
        return 2 * super().loss(client, step)


def test_a_loss_for_one_client_only_is_refused():
    assert can_fuse(Part())
    assert can_fuse(FedProx())
    assert can_fuse(Both())
    for part in (Alone(), Bolder()):
        with pytest.raises(InputError, match=r"^--fuse: the loss of test_fused is written for one client .*--fuse 1$"):
            check(RunConfig(parts=(part,), fuse=2))
        assert check(RunConfig(parts=(part,), fuse=1))
