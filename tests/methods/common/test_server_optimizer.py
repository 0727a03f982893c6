"""What server optimisers share: the pseudo-gradient, a state per model, and what they leave alone."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from raysim.engine.digest import digest
from raysim.engine.failures import RunFailure
from raysim.engine.in_process import InProcess
from raysim.engine.server import Server
from raysim.errors import InputError
from raysim.methods import part_classes
from raysim.methods.fedadam import FedAdam
from raysim.methods.fedavgm import FedAvgM
from raysim.storage.checkpoints import Checkpoints
from tests.simulate import comparable, simulate

BATCH_NORM = {"model": "fedpa-cnn", "rounds": 2}


def moved(part, rounds: list[tuple[float, float]], models: list[int] | None = None) -> list[float]:
    """Where one parameter goes in each round, from (its value before, the clients' mean)."""
    server = SimpleNamespace(state={part.name: {}}, device=torch.device("cpu"), averaged_model=0)
    found = []
    for (before, mean), server.averaged_model in zip(rounds, models or [0] * len(rounds), strict=True):
        arrays = (np.array([value], np.float32) for value in (before, mean))
        found.append(part.aggregate(server, *arrays).item())
    return found


def test_only_one_part_decides_what_becomes_of_the_mean():
    with pytest.raises(InputError, match=r"^--method fedadam[+]feddyn: fedadam and feddyn both decide 'aggregate'"):
        part_classes("fedadam+feddyn")


def test_statistics_of_batch_norm_are_averaged_and_take_no_step():
    """After one round they are FedAvg's, which trained from the same start; parameters are not."""
    ours = simulate(method="fedadam", **BATCH_NORM | {"rounds": 1}).models[0]
    theirs = simulate(**BATCH_NORM | {"rounds": 1}).models[0]
    assert any("running_var" in name for name in ours)
    for name in ours:
        assert np.array_equal(ours[name], theirs[name]) == ("running_" in name or "num_batches" in name), name


def test_what_stays_at_the_clients_stays():
    ours, theirs = (
        simulate(method=method, evaluation="clients", **BATCH_NORM).models[0] for method in ("fedadam+fedbn", "fedbn")
    )
    for name in ours:  # what nobody sends keeps its initial value
        personal = name.startswith(("extractor.1.", "extractor.4."))
        assert np.array_equal(ours[name], theirs[name]) == personal, name


def test_the_moments_are_in_checkpoints(tmp_path):
    """A server that dies after the second round goes on with what the checkpoint has."""
    server = InProcess()
    expected = comparable(simulate(method="fedadam", runner=server))
    (tree, _), state = server.server.snapshot(), server.server.state["fedadam"]
    checkpoints = Checkpoints(tmp_path, {})
    checkpoints.save(3, tree, {}, {})
    restored = Server(server.server.config, server.server.data)
    restored.restore(Checkpoints(tmp_path, {}).load().server, {})
    assert digest(restored.export()[0]) == expected[0]
    for name in ("m", "v"):
        assert torch.equal(restored.state["fedadam"]["0"][name], state["0"][name])
        assert state["0"][name].any()


@pytest.mark.parametrize("lr", [1e9, float("nan")])
def test_a_step_that_is_too_large_ends_the_run_in_one_line(lr, monkeypatch):
    monkeypatch.setattr(FedAvgM, "step", lambda part, state, change: lr * change)
    said = r"^`aggregate` of fedavgm failed in round 1: it returned .* not below 2.1e\+06; lower its learning"
    with pytest.raises(RunFailure, match=said):
        simulate(method="fedavgm")


def test_a_wrong_shape_is_named(monkeypatch):
    monkeypatch.setattr(FedAvgM, "aggregate", lambda part, server, before, mean: mean[:-1])
    array = r"a float32 array of shape \(\d+,\)"
    with pytest.raises(RunFailure, match=f"^`aggregate` of fedavgm .* {array}, where {array} belongs$"):
        simulate(method="fedavgm", rounds=1)


def test_the_defaults_are_those_of_the_paper():
    """Reddi et al., 2021, section 5.1 and appendix: β1 0.9, β2 0.99, τ 1e-3."""
    part = FedAdam()
    assert (part.beta1, part.beta2, part.tau) == (0.9, 0.99, 1e-3)
