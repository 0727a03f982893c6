"""NaiveMix: what is shared, and the mixture trained on, against NumPy."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from raysim.data.synthetic_tables import column, images_of, labels_of
from raysim.models import build
from raysim.rng import stream
from tests.data.dealing import partition
from tests.simulate import blobs, simulate

THREE = {"method": "naivemix", "naivemix.mean_of": 3}


def normalised(dataset):
    pixels = dataset.train.x.astype(np.float64)
    return (pixels - pixels.mean()) / pixels.std()


def test_shared_are_means_of_m_samples_and_labels_of_every_client():
    dataset = blobs()
    result = simulate(dataset, **THREE, rounds=1)
    dealt = partition(dataset.train.y, 5, kind="dirichlet", clients=10, seed=3, beta=0.5)
    table, x, y = result.shared["naivemix"], normalised(dataset), np.eye(5)[dataset.train.y]
    assert np.array_equal(column(table, "client"), np.repeat(np.arange(10), dealt.sizes // 3))
    at, similar = 0, []
    for k in range(10):
        rows = dealt.order[dealt.offsets[k] : dealt.offsets[k + 1]]
        rows = rows[stream(3, "naivemix/rows", 1, k).permutation(len(rows))]
        for first in range(0, len(rows) - 2, 3):
            three = rows[first : first + 3]
            np.testing.assert_allclose(images_of(table)[at], x[three].mean(0), atol=1e-5)
            np.testing.assert_allclose(labels_of(table)[at], y[three].mean(0), atol=1e-6)
            assert y[three].mean(0)[column(table, "label")[at]] == y[three].mean(0).max()
            apart = ((dataset.train.x[three].mean(0) - dataset.train.x[three]) / 255) ** 2
            similar.append((-10 * np.log10(apart.mean((1, 2, 3)))).mean())
            at += 1
    assert at == table.num_rows == result.history[0]["naivemix.means"]
    assert result.history[0]["psnr"] == pytest.approx(np.mean(similar), rel=1e-4)


def test_means_of_one_class():
    """Every mean has one label and is that of three samples of it; a class's rest of fewer than three is left out."""
    dataset = blobs()
    result = simulate(dataset, **THREE, **{"naivemix.one_class": True}, rounds=1)
    dealt = partition(dataset.train.y, 5, kind="dirichlet", clients=10, seed=3, beta=0.5)
    table, x, at = result.shared["naivemix"], normalised(dataset), 0
    for k in range(10):
        rows = dealt.indices(k)
        rows = rows[stream(3, "naivemix/rows", 1, k).permutation(len(rows))]
        for label in range(5):
            mine = [row for row in rows if dataset.train.y[row] == label]
            for first in range(0, len(mine) - 2, 3):
                np.testing.assert_allclose(images_of(table)[at], x[mine[first : first + 3]].mean(0), atol=1e-5)
                assert labels_of(table)[at].tolist() == np.eye(5)[label].tolist()
                at += 1
    assert at == table.num_rows


@pytest.mark.parametrize("method", ["naivemix", "fedmix"])
def test_means_are_shared_once_and_downloaded_once_by_everybody(method):
    """And no model is: means are of pixels."""
    result, average = simulate(**{"method": method, f"{method}.mean_of": 3}), simulate()
    table = result.shared[method]
    pairs = zip(result.history, average.history, strict=True)
    more = [ours["bytes_down"] - theirs["bytes_down"] for ours, theirs in pairs]
    assert more == [10 * table.nbytes, 0, 0]
    sent = result.history[0]["bytes_up"] - average.history[0]["bytes_up"]
    assert sent == images_of(table).nbytes + labels_of(table).nbytes


def test_a_step_is_on_the_mixture():
    """One client, one step of plain SGD on all its samples, each mixed with a mean of its own."""
    settings = {"clients": 1, "active": 1, "rounds": 1, "local_steps": 1, "momentum": 0, "lr": 0.1, "batch_size": 400}
    dataset = blobs()
    result = simulate(dataset, **THREE | settings | {"naivemix.ratio": 0.3})
    table = result.shared["naivemix"]
    order = stream(3, "batches", 1, 0).permutation(400)
    rows = stream(3, "naivemix/batches", 1, 0).integers(133, size=400)
    dealt = partition(dataset.train.y, 5, kind="dirichlet", clients=1, seed=3, beta=0.5)
    x, y = normalised(dataset)[dealt.order][order], np.eye(5)[dataset.train.y][dealt.order][order]
    x, y = 0.7 * x + 0.3 * images_of(table)[rows], 0.7 * y + 0.3 * labels_of(table)[rows]
    module = build("mlp", (1, 8, 8), 5, seed=3).double()
    loss = -(torch.from_numpy(y) * F.log_softmax(module(torch.from_numpy(x)), 1)).sum(1).mean()
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    for (name, p), g in zip(module.named_parameters(), gradients, strict=True):
        np.testing.assert_allclose(result.models[0][name], (p - 0.1 * g).detach().numpy(), atol=2e-6)


@pytest.mark.parametrize("method", ["naivemix", "fedmix"])
def test_clients_with_too_few_samples_share_nothing(method):
    result = simulate(method=method, **{f"{method}.mean_of": 500})
    assert not result.shared
    assert result.history[0][f"{method}.means"] == 0
    assert result.model_sha256 == simulate().model_sha256


def test_beside_a_method_that_needs_the_real_labels():
    settings = {"method": "naivemix+hfmds+fedpa", "hfmds.layer": "features", "hfmds.steps": 2, "fedpa.gen_steps": 2}
    assert np.isfinite(simulate(**settings).history[-1]["loss"])
