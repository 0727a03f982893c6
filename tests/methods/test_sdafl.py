"""SDA-FL: the pool, pseudo-labels, mixtures and server steps, each against an independent computation."""

import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from raysim.cli import main
from raysim.data.synthetic_tables import column, images_of, make_table
from raysim.engine.in_process import InProcess
from raysim.engine.server import Server
from raysim.errors import InputError
from raysim.methods.base import Uploads
from raysim.methods.common.pseudo_labels import mixed, pseudo_labels
from raysim.methods.sdafl import SDAFL, own
from raysim.models import build
from raysim.models.flat import FlatModel
from raysim.rng import stream
from raysim.training.client import Client
from raysim.training.shared_images import SharedImages
from tests.faults.harness import ROOT, results
from tests.simulate import blobs, comparable, configure, federated, simulate, told_to

QUICK = {
    "method": "sdafl", "sdafl.pool": 45, "sdafl.gan_rounds": 2, "sdafl.gan_steps": 5, "sdafl.gan_slice": 1,
    "sdafl.gan_batch": 8, "sdafl.width": 4, "sdafl.noise": 8, "sdafl.server_steps": 3, "sdafl.threshold": 0.4,
}  # fmt: skip
POOL = np.random.default_rng(0).normal(0, 1, (8, 1, 8, 8)).astype(np.float32)
LABELS = torch.tensor([2, -1, 0, 4, -1, 1, 3, 3], dtype=torch.int16)


@pytest.fixture(scope="module")
def quick():
    return simulate(**QUICK)


def pool_of(owners):
    return make_table(POOL, np.full(8, -1), np.array(owners), np.ones(8, np.int64))


def client_with(settings=(), state=None, unlabelled=None, labels=LABELS):
    """Client 1 with six labelled images, holding the global model, before its local steps."""
    torch.manual_seed(1)
    config = configure(method="sdafl", batch_size=6, **dict(settings))
    model = FlatModel(build("mlp", (1, 8, 8), 5, seed=3).eval(), torch.device("cpu"))
    x, y = torch.randn(6, 1, 8, 8), torch.tensor([0, 1, 2, 3, 4, 0])
    broadcast = {"sdafl": {} if labels is None else {"labels": labels}}
    shared = {"sdafl": SharedImages(pool_of([0] * 3 + [1] * 5), torch.device("cpu"))}
    return Client(
        1, 2, config, 5, model, model.weights.clone(), x, y, broadcast, {"sdafl": state or {}}, shared,
        unlabelled=unlabelled,
    )  # fmt: skip


# -- the rule and the mixture ---------------------------------------------------------------------------------------


def test_a_label_counts_above_the_threshold_only():
    labels = pseudo_labels(torch.tensor([1, 2, 3, 0]), torch.tensor([0.951, 0.95, 0.5, 1.0]), 0.95)
    assert labels.tolist() == [1, -1, -1, 0]
    assert pseudo_labels(torch.tensor([1]), torch.tensor([1.0]), 1.0).tolist() == [-1]  # nothing is above 1


def test_eqs_3_and_4_mixing_labels_is_mixing_losses():
    torch.manual_seed(0)
    x, made = torch.randn(2, 4, 3).double().unbind()
    y, labels, logits = torch.tensor([0, 1, 2, 0]), torch.tensor([2, 2, 1, 1]), torch.randn(4, 3).double()
    mixed_x, mixed_y = mixed((made, labels), (x, y), 0.3, 3)
    torch.testing.assert_close(mixed_x, 0.3 * made + 0.7 * x)
    expected = 0.3 * F.cross_entropy(logits, labels) + 0.7 * F.cross_entropy(logits, y)
    torch.testing.assert_close(F.cross_entropy(logits, mixed_y.double()), expected)


@pytest.mark.parametrize("lambda_real", [0.0, 0.7])
def test_eq_6_the_local_loss(lambda_real):
    """ℓ1 + λ2·ℓ2, of the loop's pieces, against the equation with the same draws."""
    client, part = client_with(), SDAFL(lambda_real=lambda_real, beta=0.5)
    part.begin(client)
    x, y = part.batch(client, client.x, client.y)
    module = client.model.module
    step = None  # not looked at
    total = part.ce_weight(client) * F.cross_entropy(module(x), y)
    if (term := part.loss(client, step)) is not None:
        total = total + term
    draw = stream(3, "sdafl/batches", 2, 1)
    rows = np.array([0, 2, 3, 5, 6, 7])[draw.integers(6, size=6)]
    share = draw.beta(0.5, 0.5)
    blend = share * torch.from_numpy(POOL[rows]) + (1 - share) * client.x
    logits, made_y = module(blend), LABELS[torch.from_numpy(rows)].long()
    first = share * F.cross_entropy(logits, made_y) + (1 - share) * F.cross_entropy(logits, client.y)
    torch.testing.assert_close(total, first + lambda_real * F.cross_entropy(module(client.x), client.y))


def test_before_any_label_it_is_the_plain_loss():
    for labels in (None, torch.full((8,), -1, dtype=torch.int16)):
        client, part = client_with(labels=labels), SDAFL(lambda_real=0.3)
        part.begin(client)
        x, y = part.batch(client, client.x, client.y)
        assert x is client.x
        assert y is client.y
        assert part.ce_weight(client) == 1
        assert part.loss(client, None) is None


# -- pseudo-labels --------------------------------------------------------------------------------------------------


def test_a_client_labels_its_own_part_of_the_pool():
    client = client_with()
    sent = SDAFL().end(client).rows
    probabilities = torch.softmax(client.model.module(torch.from_numpy(POOL[3:])), 1).detach()
    assert sent["labels"].tolist() == probabilities.argmax(1).tolist()
    torch.testing.assert_close(sent["confidence"], probabilities.max(1).values)
    assert own(client.shared["sdafl"].table, 0) == slice(0, 3)


def test_after_label_rounds_labels_stay():
    assert SDAFL(label_rounds=1).end(client_with()) is None
    assert SDAFL(label_rounds=2).end(client_with()) is not None


def server_with(settings=()):
    config = configure(method="sdafl", clients=2, active=2, partition="iid", **dict(settings))
    server = Server(config, federated(config, blobs()))
    server.begin()
    server.t = 2
    server.share("sdafl", pool_of([0] * 3 + [1] * 5))
    server.state["sdafl"]["labels"] = LABELS.clone()
    return server


@pytest.mark.parametrize(("forget", "expected"), [(True, [1, -1, 2, -1, 0]), (False, [1, -1, 2, 3, 0])])
def test_the_server_revises_the_labels_of_those_who_sent_some(forget, expected):
    server = server_with()
    sent = {"labels": np.array([1, 1, 2, 2, 0], np.int16), "confidence": np.float32([0.99, 0.2, 0.96, 0.5, 0.97])}
    SDAFL(server_steps=0, forget=forget).update(server, Uploads({}, [(1, sent)]))
    assert server.state["sdafl"]["labels"].tolist() == [2, -1, 0, *expected]  # client 0's stay
    assert server.metrics["sdafl.labelled"] == (5 if forget else 6) / 8


def test_a_server_step_by_hand():
    """Plain SGD on the two halves of a batch, the first in the place of the real one."""
    server = server_with({"momentum": 0, "lr": 0.1})
    SDAFL(server_steps=1, server_batch=5, lambda_real=0.7).update(server, Uploads({}, []))
    draw = stream(3, "server/sdafl/steps", 2)
    rows = np.array([0, 2, 3, 5, 6, 7])[draw.integers(6, size=4)]  # 5 cannot be halved
    share = draw.beta(1, 1)
    module = build("mlp", (1, 8, 8), 5, seed=3).double()
    x, y = torch.from_numpy(POOL[rows]).double(), LABELS[torch.from_numpy(rows)].long()
    logits = module((1 - share) * x[:2] + share * x[2:])
    loss = (1 - share) * F.cross_entropy(logits, y[:2]) + share * F.cross_entropy(logits, y[2:])
    loss = loss + 0.7 * F.cross_entropy(module(x[:2]), y[:2])
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    expected = torch.cat([(p - 0.1 * g).flatten() for p, g in zip(module.parameters(), gradients, strict=True)])
    np.testing.assert_allclose(server.weights[0], expected.detach(), atol=2e-6)


# -- with few labels ------------------------------------------------------------------------------------------------


def test_unlabelled_images_with_a_confident_label_join_the_batch():
    unlabelled = torch.randn(4, 1, 8, 8)
    state = {"unlabelled": torch.tensor([-1, 3, -1, 1], dtype=torch.int16)}
    client = client_with({"labelled": 6, "unlabelled_batch": 7}, state, unlabelled)
    part = SDAFL()
    part.begin(client)
    x, y = part.batch(client, client.x, client.y)
    rows = np.array([1, 3])[stream(3, "sdafl/batches", 2, 1).integers(2, size=7)]
    assert torch.equal(x, torch.cat([client.x, unlabelled[rows]]))
    assert y.tolist() == [0, 1, 2, 3, 4, 0, *(3 if row == 1 else 1 for row in rows)]
    assert len(part.mixture(client)[0]) == 13


def test_unlabelled_images_get_labels_from_the_model_just_trained():
    unlabelled = torch.randn(40, 1, 8, 8)
    client = client_with({"labelled": 6}, unlabelled=unlabelled)
    SDAFL(threshold=0.4).end(client)
    probabilities = torch.softmax(client.model.module(unlabelled), 1)
    expected = torch.where(probabilities.max(1).values > 0.4, probabilities.argmax(1), -1)
    assert client.state["sdafl"]["unlabelled"].tolist() == expected.tolist()
    assert 0 < (expected == -1).sum() < 40


@pytest.mark.parametrize("forget", [True, False])
def test_labels_of_unlabelled_images_stay_until_revised_or_are_dropped(forget):
    unlabelled = torch.randn(40, 1, 8, 8)
    before = torch.tensor([-1, 0, 1, 4] * 10, dtype=torch.int16)
    client = client_with({"labelled": 6}, {"unlabelled": before}, unlabelled)
    SDAFL(threshold=0.4, forget=forget).end(client)
    probabilities = torch.softmax(client.model.module(unlabelled), 1)
    expected = [
        int(p.argmax()) if p.max() > 0.4 else -1 if forget else old
        for p, old in zip(probabilities, before.tolist(), strict=True)
    ]
    assert client.state["sdafl"]["unlabelled"].tolist() == expected
    assert client.state["sdafl"]["unlabelled"].dtype == torch.int16


def test_with_few_labels_it_runs():
    result = simulate(**QUICK, labelled=12, unlabelled_batch=8)
    assert np.isfinite(result.history[-1]["loss"])


# -- whole runs -----------------------------------------------------------------------------------------------------


def test_the_pool_is_dealt_evenly_shared_once_and_counted(quick):
    table, average = quick.shared["sdafl"], simulate()
    assert np.bincount(column(table, "client")).tolist() == [4, 5] * 5
    assert np.isfinite(images_of(table)).all()
    up, down = (
        [ours[key] - theirs[key] for ours, theirs in zip(quick.history, average.history, strict=True)]
        for key in ("bytes_up", "bytes_down")
    )
    labels = 45 * 2
    own_rows = [
        sum(4 + k % 2 for k in sorted(stream(3, "cohort", t).choice(10, 6, replace=False).tolist())) for t in (1, 2, 3)
    ]
    assert up == [images_of(table).nbytes + 6 * own_rows[0], 6 * own_rows[1], 6 * own_rows[2]]  # 2 + 4 bytes a row
    assert down == [10 * table.nbytes + 6 * labels, 6 * labels, 6 * labels]


def test_each_pass_of_the_gans_is_reported_before_the_first_round():
    told = []
    simulate(**QUICK | {"rounds": 1, "sdafl.gan_rounds": 5, "sdafl.gan_slice": 2}, on_event=told_to(told))
    passes = [(kind, details["part"], details["passes"], details["of"], details["round"]) for kind, details in told]
    assert passes == [("exchanged", "sdafl", i, 3, 1) for i in (1, 2, 3)]


def test_the_last_table_has_the_last_labels(quick):
    labels = column(quick.shared["sdafl"], "label")
    assert (labels >= 0).mean() == quick.history[-1]["sdafl.labelled"] > 0


def test_neutral_settings_are_fedavg():
    assert comparable(simulate(**QUICK | {"sdafl.pool": 0})) == comparable(simulate())
    never = simulate(**QUICK | {"sdafl.threshold": 1.0})  # there is a pool, but nothing in it is ever labelled
    assert never.model_sha256 == simulate().model_sha256


def test_the_number_of_workers_changes_nothing(quick):
    assert comparable(simulate(runner=InProcess(3), **QUICK)) == comparable(quick)


def test_fused_training_gives_the_same_but_for_the_last_bits(quick):
    fused = simulate(**QUICK, fuse=3)
    assert np.array_equal(images_of(fused.shared["sdafl"]), images_of(quick.shared["sdafl"]))  # GANs are not fused
    for name, ours in quick.models[0].items():
        np.testing.assert_allclose(fused.models[0][name], ours, atol=1e-4)


def test_beside_other_methods():
    settings = QUICK | {"method": "sdafl+fedpa+fedprox", "fedpa.gen_steps": 2}
    assert np.isfinite(simulate(**settings).history[-1]["loss"])


@pytest.mark.slow
def test_a_private_run_reports_both_epsilons_and_gives_other_images(quick):
    private = simulate(**QUICK, **{"sdafl.epsilon": 8.0, "rounds": 1})
    line = private.history[0]
    assert 7.5 < line["sdafl.epsilon"] <= 8
    assert line["sdafl.paper_epsilon"] > 0
    assert not np.array_equal(images_of(private.shared["sdafl"]), images_of(quick.shared["sdafl"]))
    assert "sdafl.epsilon" not in quick.history[0]


def test_the_certificate_or_why_there_is_none():
    server = server_with()
    (none,) = SDAFL().certificate(server)
    assert none.value is None
    assert none.note.startswith("no certificate: the critic's gradients are not clipped")
    for part in (SDAFL(pool=0), SDAFL(pool=0, epsilon=3.0)):
        (nothing,) = part.certificate(server)
        assert (nothing.value, nothing.note) == (None, "nothing was shared")
    part = SDAFL(epsilon=3.0, gan_rounds=30)
    part.note_privacy(server, [{"epsilon": 2.9, "paper_epsilon": 0.5, "sigma": 1.1},
                               {"epsilon": 2.99, "paper_epsilon": 0.4, "sigma": 1.0}])  # fmt: skip
    ours, paper = part.certificate(server)
    assert (ours.value, paper.value) == (2.99, 0.4)  # the client's for whom it is largest
    assert "one GAN round (90 steps), not of all 30" in paper.note


def test_two_parts_with_gans_are_refused():
    with pytest.raises(InputError, match="sdafl and fedgan both train GANs; use one of them"):
        configure(method="sdafl+fedgan")


def test_killed_between_two_slices_it_goes_on_with_the_next(tmp_path):
    words = [
        "--method", "sdafl", "--model", "mlp", "--clients", "3", "--rounds", "2", "--train-size", "90",
        "--test-size", "50", "--image-size", "16", "--in-process", "--sdafl.pool", "12", "--sdafl.gan-rounds", "6",
        "--sdafl.gan-steps", "4", "--sdafl.gan-slice", "1", "--sdafl.width", "4", "--sdafl.threshold", "0.3",
    ]  # fmt: skip
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert main(["run", *words, "--out", str(whole)]) == 0
    command = [sys.executable, "-m", "raysim", "run", *words, "--out", str(out)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not list((out / "checkpoints").glob("round-00000-*.json")):
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -9
    assert not (out / "metrics.jsonl").read_text()
    assert main(["resume", str(out)]) == 0
    assert '"resumed", "round": 0' in (out / "events.jsonl").read_text()
    assert results(out) == results(whole)
