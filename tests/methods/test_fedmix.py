"""FedMix: its Taylor term against finite differences, its loss against NaiveMix's, a step against float64."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from raysim.data.synthetic_tables import images_of, labels_of
from raysim.engine.in_process import InProcess
from raysim.errors import InputError
from raysim.methods.fedmix import FedMix
from raysim.methods.naivemix import NaiveMix
from raysim.models import build
from raysim.rng import stream
from raysim.training.client import Step, forward
from tests.data.dealing import partition
from tests.methods.test_naivemix import normalised
from tests.simulate import blobs, comparable, configure, simulate


@pytest.fixture
def batch():
    """A smooth network in float64 with a batch, and as many means with soft labels."""
    draw = torch.Generator().manual_seed(0)
    x, mean_x = (torch.randn(6, 1, 8, 8, dtype=torch.float64, generator=draw) for _ in range(2))
    mean_y = torch.rand(6, 5, dtype=torch.float64, generator=draw)
    module = build("mlp", (1, 8, 8), 5, seed=3).double()
    module.extractor[2] = torch.nn.Softplus()
    return module, x, torch.tensor([0, 1, 3, 4, 4, 2]), mean_x, mean_y / mean_y.sum(1, keepdim=True)


def loss_of(part, module, x, y, mean_x, mean_y):
    """The local loss of one step, as the training loop puts it together."""
    client = SimpleNamespace(classes=5, scratch={part.name: {}}, shared={part.name: "there"})
    x, y = part.mix(client, x, y, mean_x, mean_y)
    step = Step(x, y, None, None, *forward(module, x, y))
    term = part.loss(client, step)
    return part.ce_weight(client) * step.ce + (0 if term is None else term)


def test_the_taylor_term_is_the_slope_of_the_first_term(batch):
    """d/dε ℓ₁ at ε = 0 where the network's input is (1−λ)x + εx̄, by central differences."""
    module, x, y, mean_x, mean_y = batch
    ratio, size = 0.2, 1e-5

    def first(shift):
        return (1 - ratio) * F.cross_entropy(module((1 - ratio) * x + shift * mean_x), y)

    slope = (first(size) - first(-size)) / (2 * size)
    logits = module((1 - ratio) * x)
    second = -(mean_y * F.log_softmax(logits, 1)).sum() / 6
    expected = first(0) + ratio * second + ratio * slope
    assert loss_of(FedMix(ratio=ratio), *batch).item() == pytest.approx(expected.item(), rel=1e-8)


def test_it_is_naivemix_to_first_order(batch):
    apart = [(loss_of(FedMix(ratio=r), *batch) - loss_of(NaiveMix(ratio=r), *batch)).abs().item() for r in (0.02, 0.01)]
    assert apart[0] / apart[1] == pytest.approx(4, rel=0.1)  # half the ratio, a quarter of the error


def test_a_step_follows_the_gradient_of_the_whole_loss():
    """One client, one step of plain SGD; the Taylor term's gradient by finite differences of plain gradients."""
    settings = {"clients": 1, "active": 1, "rounds": 1, "local_steps": 1, "momentum": 0, "lr": 0.1, "batch_size": 400}
    dataset, ratio, size = blobs(), 0.3, 1e-7
    result = simulate(dataset, method="fedmix", **settings, **{"fedmix.ratio": ratio})
    table = result.shared["fedmix"]
    dealt = partition(dataset.train.y, 5, kind="dirichlet", clients=1, seed=3, beta=0.5)
    order = stream(3, "batches", 1, 0).permutation(400)
    rows = stream(3, "fedmix/batches", 1, 0).integers(200, size=400)
    mean_x, mean_y = (torch.from_numpy(v[rows]).double() for v in (images_of(table), labels_of(table)))
    x = (1 - ratio) * torch.from_numpy(normalised(dataset)[dealt.order][order])
    y = torch.from_numpy(dataset.train.y[dealt.order][order])
    module = build("mlp", (1, 8, 8), 5, seed=3).double()
    parameters = list(module.parameters())

    def gradients(loss):
        return torch.autograd.grad(loss, parameters)

    plain = gradients((1 - ratio) * F.cross_entropy(module(x), y) + ratio * F.cross_entropy(module(x), mean_y))
    up, down = (gradients((1 - ratio) * F.cross_entropy(module(x + e * mean_x), y)) for e in (size, -size))
    for (name, p), g, above, below in zip(module.named_parameters(), plain, up, down, strict=True):
        expected = p - 0.1 * (g + ratio * (above - below) / (2 * size))
        np.testing.assert_allclose(result.models[0][name], expected.detach().numpy(), atol=2e-6)


@pytest.mark.parametrize("model", ["mlp", "fedpa-cnn"])
def test_the_number_of_workers_changes_nothing(model):
    settings = {"method": "fedmix+fedprox", "model": model}
    here = simulate(**settings)
    assert comparable(simulate(runner=InProcess(3), **settings)) == comparable(here)
    assert np.isfinite(here.history[-1]["loss"])
    assert here.history[-1]["terms"].keys() == {"fedmix", "fedprox"}


def test_what_it_cannot_go_with():
    with pytest.raises(InputError, match=r"^--method fedmix differentiates twice, which --compile cannot"):
        configure(method="fedmix", compile="yes")
