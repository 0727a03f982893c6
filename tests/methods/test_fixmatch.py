"""FixMatch: its term with the mask by hand, labelled and unlabelled batches, and runs."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from raysim.cli import main
from raysim.data.normalisation import Normalisation
from raysim.engine.in_process import InProcess
from raysim.errors import InputError
from raysim.methods.common.augmentation import augmented, draw_strong, draw_weak, shifted
from raysim.methods.fixmatch import FixMatch
from raysim.models import build
from raysim.models.flat import FlatModel
from raysim.rng import stream
from raysim.training.client import Client, Step, split_labelled
from tests.data.dealing import partition
from tests.simulate import blobs, comparable, configure, simulate

FEW = {"method": "fixmatch", "labelled": 12, "unlabelled_batch": 16, "fixmatch.threshold": 0.5}


@pytest.fixture
def client():
    """Client 4 in round 2, with 5 labelled and 30 unlabelled images."""
    torch.manual_seed(1)
    config = configure(**FEW)
    model = FlatModel(build("mlp", (1, 8, 8), 5, seed=3).eval(), torch.device("cpu"))
    x, y = torch.randn(5, 1, 8, 8), torch.tensor([0, 1, 2, 3, 4])
    scale = Normalisation((120.0,), (60.0,)).on(torch.device("cpu"))
    held = {"fixmatch": {}}
    return Client(
        4, 2, config, 5, model, model.weights.clone(), x, y, {}, held, {}, scale,
        unlabelled=torch.randn(30, 1, 8, 8),
    )  # fmt: skip


def term(part, client):
    """The part's term of a local step, in which its images pass through the network."""
    logits = client.model.module(part.extra(client))
    return part.loss(client, Step(None, None, None, None, None, None, None, {part.name: logits}))


def test_the_term_by_hand(client):
    part = FixMatch(lambda_u=0.7, threshold=0.3)
    part.begin(client)
    module = client.model.module
    rows = stream(3, "fixmatch/rows", 2, 4).integers(30, size=16)
    x = client.unlabelled[torch.from_numpy(rows)]
    ((at, along),) = draw_weak([16], x, stream(3, "fixmatch/weak", 2, 4), flip=True)
    sure = torch.softmax(module(shifted(x, at, along)), 1).detach()
    (draws,) = draw_strong([[16]], x, stream(3, "fixmatch/strong", 2, 4), flip=True)
    pixels = ((x * 60 + 120) / 255).clamp(0, 1)
    changed = (augmented(pixels, draws) * 255 - 120) / 60
    losses = -F.log_softmax(module(changed), 1)[torch.arange(16), sure.argmax(1)]
    counted = sure.max(1).values > 0.3
    assert 0 < counted.sum() < 16
    torch.testing.assert_close(term(part, client), 0.7 * (losses * counted).sum() / 16)


def test_nothing_sure_gives_nothing_and_no_gradient(client):
    part = FixMatch(threshold=1.0)
    part.begin(client)
    loss = term(part, client)
    loss.backward()
    assert loss.item() == 0
    assert not client.model.gradients.any()


def test_labelled_images_are_changed_weakly_with_draws_of_their_own(client):
    part = FixMatch(flip=False)
    part.begin(client)
    x, y = part.batch(client, client.x, client.y)
    ((rows, columns),) = draw_weak([5], client.x, stream(3, "fixmatch/labelled", 2, 4), flip=False)
    assert torch.equal(x, shifted(client.x, rows, columns))
    assert y is client.y


def test_a_client_keeps_the_labels_it_was_given_and_no_others():
    dataset = blobs()
    dealt = partition(dataset.train.y, 5, kind="iid", clients=4, seed=3)
    rows = dealt.indices(1)
    x, y = torch.arange(len(rows)), torch.from_numpy(dataset.train.y[rows])
    kept, labels, others = split_labelled(x, y, 20, seed=3, client_id=1)
    assert len(kept) == 20
    assert sorted([*kept.tolist(), *others.tolist()]) == x.tolist()
    assert torch.equal(labels, y[kept])
    shares = np.bincount(labels, minlength=5) / 20 - np.bincount(y, minlength=5) / len(y)
    assert np.abs(shares).max() < 1 / 20  # stratified
    again = split_labelled(x, y, 20, seed=3, client_id=1)
    assert torch.equal(again[0], kept)
    assert len(split_labelled(x, y, 10**6, seed=3, client_id=1)[2]) == 0


def test_fedavg_with_few_labels_sees_no_other_image():
    """Changing the pixels of what is unlabelled changes nothing."""
    dataset, settings = blobs(), {"clients": 2, "active": 2, "partition": "iid", "labelled": 12, "normalise": "half"}
    expected = simulate(dataset, **settings)
    dealt = partition(dataset.train.y, 5, kind="iid", clients=2, seed=3)
    for k in range(2):
        rows = dealt.indices(k)
        _, _, others = split_labelled(torch.arange(len(rows)), torch.from_numpy(dataset.train.y[rows]), 12, 3, k)
        dataset.train.x[rows[others.numpy()]] = 7
    assert simulate(dataset, **settings).model_sha256 == expected.model_sha256


def test_runs_with_few_labels_and_with_all():
    for settings in (FEW, {"method": "fixmatch"}, FEW | {"method": "fixmatch+mixup"}):
        assert np.isfinite(simulate(**settings).history[-1]["terms"]["fixmatch"])


def test_no_weight_is_fedavg():
    settings = {"method": "fixmatch", "fixmatch.lambda_u": 0}
    assert comparable(simulate(**settings)) == comparable(simulate())


def test_the_number_of_workers_changes_nothing():
    settings = FEW | {"method": "fixmatch+mixup"}
    assert comparable(simulate(runner=InProcess(3), **settings)) == comparable(simulate(**settings))


def test_it_is_for_one_client_at_a_time():
    with pytest.raises(InputError, match="the loss of fixmatch is written for one client at a time"):
        configure(method="fixmatch", fuse=2)


@pytest.mark.parametrize("method", ["fixmatch+mixup", "sdafl", "fedgan", "feddpgan"])
def test_on_shapes_with_few_labels(method, tmp_path):
    """Colour images, a network with convolutions, and everything a run writes."""
    small = {"pool": 20, "gan-rounds": 1, "gan-steps": 2, "gan-batch": 4, "width": 2, "noise": 4}
    gan = (
        [word for key, value in small.items() for word in (f"--{method}.{key}", str(value))]
        if "+" not in method
        else []
    )
    words = ["--dataset", "shapes", "--model", "small-cnn", "--clients", "3", "--rounds", "2", "--train-size", "60"]
    words += ["--test-size", "20", "--labelled", "8", "--unlabelled-batch", "6", "--in-process"]
    assert main(["run", "--method", method, *words, *gan, "--out", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "report.html").exists()
    assert (tmp_path / "run" / "synthetic.parquet").exists() == bool(gan)
