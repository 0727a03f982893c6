"""SCAFFOLD against its algorithm written out in float64 here."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from raysim.engine.in_process import InProcess
from raysim.errors import InputError
from raysim.methods.scaffold import path_length
from raysim.models import build
from raysim.models.flat import FlatModel
from raysim.rng import stream
from tests.data.dealing import partition
from tests.simulate import blobs, configure, simulate

TWO = {"method": "scaffold", "clients": 2, "rounds": 3, "local_steps": 3, "lr": 0.1, "batch_size": 400, "beta": 1.0}


def data_of(dataset, dealt, k):
    x = torch.from_numpy(dataset.train.x.astype(np.float64))
    x = (x - x.mean()) / x.std(correction=0)
    rows = dealt.order[dealt.offsets[k] : dealt.offsets[k + 1]]
    return x[rows], torch.from_numpy(dataset.train.y[rows])


def flat(values):
    return torch.cat([v.detach().reshape(-1) for v in values])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("active", [2, 1])
def test_two_clients_by_the_algorithm(momentum, active):
    """Batches hold all of a client's samples, so no draw but the cohort's matters."""
    dataset, runner = blobs(), InProcess()
    result = simulate(dataset, runner, **TWO | {"active": active, "momentum": momentum})
    dealt = partition(dataset.train.y, 5, kind="dirichlet", clients=2, seed=3, beta=1.0)
    module = build("mlp", (1, 8, 8), 5, seed=3).double()
    w = flat(module.parameters())
    c, own = torch.zeros_like(w), [torch.zeros_like(w), torch.zeros_like(w)]
    # Σ_j (1 − β^j)/(1 − β) for j = 1, 2, 3
    distance = 0.1 * sum((1 - momentum**j) / (1 - momentum) for j in (1, 2, 3))
    for t in (1, 2, 3):
        cohort = sorted(stream(3, "cohort", t).choice(2, active, replace=False).tolist())
        trained, changes, sizes = [], [], []
        for k in cohort:
            x, y = data_of(dataset, dealt, k)
            torch.nn.utils.vector_to_parameters(w, module.parameters())
            velocity = torch.zeros_like(w)
            for _ in range(3):
                loss = F.cross_entropy(module(x), y)
                gradient = flat(torch.autograd.grad(loss, list(module.parameters()))) + c - own[k]
                velocity = momentum * velocity + gradient
                moved = flat(module.parameters()) - 0.1 * velocity
                torch.nn.utils.vector_to_parameters(moved, module.parameters())
            new = own[k] - c + (w - moved) / distance
            changes.append(new - own[k])
            own[k] = new
            trained.append(moved)
            sizes.append(len(y))
        w = sum(n * v for n, v in zip(sizes, trained, strict=True)) / sum(sizes)
        c = c + len(cohort) / 2 * sum(changes) / len(cohort)
    np.testing.assert_allclose(runner.server.state["scaffold"]["c"], c, atol=2e-6)
    got = torch.cat([torch.from_numpy(v).reshape(-1) for v in result.models[0].values()])
    np.testing.assert_allclose(got, w, atol=2e-6)
    if active == 2:  # everyone's last is in the mean
        torch.testing.assert_close(c, sum(own) / 2)
    assert not any(line["terms"] for line in result.history)  # the term's value says nothing


def test_a_gradient_that_never_changes_is_read_off_the_path():
    """β = 0.5: velocities 1, 1.5, 1.75."""
    config = configure(lr=0.1, lr_decay=0.5, momentum=0.5, local_steps=3)
    client = type("Client", (), {"config": config, "t": 2, "steps": 3})()
    assert path_length(client) == pytest.approx(0.05 * 4.25)
    client.config = configure(lr=0.1, momentum=0, local_steps=3)
    assert path_length(client) == pytest.approx(0.3)


def test_the_first_round_is_fedavgs_and_later_ones_are_not():
    assert simulate(method="scaffold", rounds=1).model_sha256 == simulate(rounds=1).model_sha256
    assert simulate(method="scaffold", rounds=2).model_sha256 != simulate(rounds=2).model_sha256


def test_a_client_alone_has_nothing_to_correct():
    alone = {"clients": 1, "active": 1}
    got, want = simulate(method="scaffold", **alone).models[0], simulate(**alone).models[0]
    for name in want:
        np.testing.assert_allclose(got[name], want[name], atol=1e-5)


def test_parameters_that_stay_at_the_clients_are_not_corrected():
    runner = InProcess()
    simulate(runner=runner, method="scaffold+fedbn", model="fedpa-cnn", evaluation="clients", rounds=2)
    layout = FlatModel(build("fedpa-cnn", (1, 8, 8), 5, seed=3), torch.device("cpu"))
    c = runner.server.state["scaffold"]["c"]
    for name in layout.parameter_names:
        if name.startswith(("extractor.1.", "extractor.4.")):
            assert not layout.view(c, name).any(), name
        elif name.endswith("weight"):  # batch-norm takes the biases before it out again
            assert layout.view(c, name).any(), name


def test_adam_is_refused():
    with pytest.raises(InputError, match=r"^--method scaffold reads .* use --optimizer sgd$"):
        configure(method="scaffold", optimizer="adam")
