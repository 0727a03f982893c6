"""Mixup: one step by hand, pseudo-labelled images in the batch, and runs."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from raysim.engine.in_process import InProcess
from raysim.errors import InputError
from raysim.methods.mixup import Mixup
from raysim.models import build
from raysim.models.flat import FlatModel
from raysim.rng import stream
from raysim.training.client import Client
from tests.data.dealing import partition
from tests.simulate import blobs, comparable, configure, simulate


def test_a_step_is_on_the_mixture():
    """One client, one step of plain SGD on all its samples, each mixed with another of the batch."""
    settings = {"clients": 1, "active": 1, "rounds": 1, "local_steps": 1, "momentum": 0, "lr": 0.1, "batch_size": 400}
    dataset = blobs()
    result = simulate(dataset, method="mixup", **settings)
    dealt = partition(dataset.train.y, 5, kind="dirichlet", clients=1, seed=3, beta=0.5)
    rows = dealt.order[stream(3, "batches", 1, 0).permutation(400)]
    pixels = dataset.train.x.astype(np.float64)
    x, y = ((pixels - pixels.mean()) / pixels.std())[rows], np.eye(5)[dataset.train.y][rows]
    draw = stream(3, "mixup/batches", 1, 0)
    other, share = draw.permutation(400), draw.beta(1, 1)
    x, y = (torch.from_numpy(share * v + (1 - share) * v[other]) for v in (x, y))
    module = build("mlp", (1, 8, 8), 5, seed=3).double()
    loss = -(y * F.log_softmax(module(x), 1)).sum(1).mean()
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    for (name, p), g in zip(module.named_parameters(), gradients, strict=True):
        np.testing.assert_allclose(result.models[0][name], (p - 0.1 * g).detach().numpy(), atol=2e-6)


def test_sure_unlabelled_images_join_the_batch():
    torch.manual_seed(1)
    config = configure(method="mixup", labelled=5, unlabelled_batch=9)
    model = FlatModel(build("mlp", (1, 8, 8), 5, seed=3).eval(), torch.device("cpu"))
    x, y, unlabelled = torch.randn(5, 1, 8, 8), torch.arange(5), torch.randn(40, 1, 8, 8)
    state = {"mixup": {}}
    client = Client(4, 2, config, 5, model, model.weights.clone(), x, y, {}, state, {}, unlabelled=unlabelled)
    part = Mixup(threshold=0.4)
    part.begin(client)
    probabilities = torch.softmax(model.module(unlabelled), 1).detach()
    sure = np.flatnonzero(probabilities.max(1).values > 0.4)
    assert 0 < len(sure) < 40
    made_x, made_y = part.batch(client, x, y)
    draw = stream(3, "mixup/batches", 2, 4)
    rows = sure[draw.integers(len(sure), size=9)]
    order, share = draw.permutation(14), draw.beta(1, 1)
    together = torch.cat([x, unlabelled[rows]])
    labels = torch.eye(5)[torch.cat([y, probabilities[rows].argmax(1)])]
    torch.testing.assert_close(made_x, (share * together + (1 - share) * together[order]))
    torch.testing.assert_close(made_y, (share * labels + (1 - share) * labels[order]))
    assert model.module.training  # as local steps need it


def test_no_mixing_is_fedavg():
    assert comparable(simulate(method="mixup", **{"mixup.beta": 0})) == comparable(simulate())


def test_the_number_of_workers_changes_nothing():
    settings = {"method": "mixup", "labelled": 12, "unlabelled_batch": 16, "mixup.threshold": 0.5}
    assert comparable(simulate(runner=InProcess(3), **settings)) == comparable(simulate(**settings))


@pytest.mark.parametrize("other", ["naivemix", "fedmix", "sdafl"])
def test_only_one_part_mixes(other):
    with pytest.raises(InputError, match=f"mixup and {other} both mix batches; use one of them"):
        configure(method=f"mixup+{other}")
