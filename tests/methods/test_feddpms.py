"""FedDPMS step by step: its loss, the decoder's way, sharing, matching and augmentation, each computed again here."""

import shutil
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from raysim.cli import main
from raysim.data import load
from raysim.data.normalisation import Normalisation
from raysim.data.synthetic_tables import column, images_of
from raysim.engine.in_process import InProcess
from raysim.errors import InputError
from raysim.methods.base import Part
from raysim.methods.common import latent_means as latents
from raysim.models import build
from raysim.models.flat import FlatModel
from raysim.rng import stream
from raysim.training.client import Client
from tests.data.dealing import partition
from tests.faults.harness import results
from tests.simulate import blobs, comparable, configure, simulate

# 5 rounds: the first stage has 2, means are sent in the 3rd, images added from the 4th on.
QUICK = {
    "method": "feddpms", "model": "feddpms-vae", "clients": 4, "active": 4, "rounds": 5, "optimizer": "adam",
    "lr": 5e-3, "local_epochs": 3, "batch_size": 16, "feddpms.quota": 6, "feddpms.tries": 4, "feddpms.classes": 2,
    "feddpms.noise": 0.5,
}  # fmt: skip
NAME = "tests.methods.test_feddpms"
SEEN: dict[str, dict] = {}


@dataclass(frozen=True)
class Recorder(Part):
    """Keeps what clients begin and end with; works in one process only."""

    def begin(self, client):
        now = {"global": client.global_weights.clone(), "began": client.model.weights.clone()}
        now |= {"own": client.samples, "all": len(client.y), "labels": client.y.clone(), "images": client.x.clone()}
        SEEN[client.t, client.id] = now | {"batches": list(client.batches())}

    def end(self, client):
        SEEN[client.t, client.id]["ended"] = client.model.weights.clone()


@pytest.fixture(scope="module")
def recorded():
    """A run with everything its clients saw, by (round, client)."""
    SEEN.clear()
    dataset = blobs(train=160, test=40)
    result = simulate(dataset, **QUICK | {"method": f"feddpms+{NAME}"})
    dealt = partition(dataset.train.y, 5, kind="dirichlet", clients=4, seed=3, beta=0.5)
    layout = FlatModel(build("feddpms-vae", (1, 8, 8), 5, seed=3), torch.device("cpu"))
    decoder = layout.personal_mask(configure(**QUICK).parts, 1)
    return result, dict(SEEN), dealt.counts(dataset.train.y, 5), decoder, layout


def make_client(t=1, **settings):
    model = FlatModel(build("feddpms-vae", (1, 8, 8), 5, seed=3).train(), torch.device("cpu"))
    x, y = torch.randn(12, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 3] * 4)
    config = configure(**QUICK | settings)
    scale = Normalisation((120.0,), (60.0,)).on(torch.device("cpu"))
    state = {"feddpms": {}}
    return Client(7, t, config, 5, model, model.weights.clone(), x, y, {"feddpms": {}}, state, {}, scale)


# -- first stage -----------------------------------------------------------------------------------------------------


def test_the_loss_and_its_gradient():
    client = make_client(**{"feddpms.vae_weight": 0.3})
    (part,) = client.config.parts
    part.begin(client)
    module = client.model.module
    features, _, _ = client.forward(module, client.x, client.y)
    step = type("Step", (), {"x": client.x, "features": features})()
    term = part.loss(client, step)
    gradient = torch.autograd.grad(term, [module.log_variance.weight, module.mean.bias])

    double = build("feddpms-vae", (1, 8, 8), 5, seed=3).double().train()
    encoded = double.encoder(client.x.double())
    mean, log_variance = 1 / (1 + torch.exp(-double.mean(encoded))), double.log_variance(encoded)
    noise = torch.from_numpy(stream(3, "feddpms/latent", 1, 7).standard_normal((12, 32), dtype=np.float32)).double()
    pixels = double.decoder(mean + torch.exp(0.5 * log_variance) * noise)
    apart = (pixels - ((60 * client.x.double() + 120) / 255).clamp(0, 1)) ** 2
    divergence = -0.5 * (1 + log_variance - mean**2 - torch.exp(log_variance))
    expected = 0.3 * (divergence.mean() + apart.sum() / 12)  # summed over the pixels of an image
    assert term.item() == pytest.approx(expected.item(), rel=1e-5)
    for mine, theirs in zip(
        gradient, torch.autograd.grad(expected, [double.log_variance.weight, double.mean.bias]), strict=True
    ):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-3, atol=1e-7)


def test_nothing_is_sampled_or_decoded_after_the_first_stage():
    client = make_client(t=3)
    (part,) = client.config.parts
    ordinary = client.forward
    part.begin(client)
    assert client.forward is ordinary
    assert part.loss(client, None) is None


def test_the_stages(recorded):
    history, seen = recorded[0].history, recorded[1]
    augmented = sum(seen[4, k]["all"] > seen[4, k]["own"] for k in range(4))
    assert augmented > 1
    assert [sorted(line["terms"]) for line in history] == [["feddpms"], ["feddpms"], [], [], []]
    assert ["feddpms.means" in line for line in history] == [False, False, True, False, False]
    assert [line.get("feddpms.augmented") for line in history] == [None, None, 0, augmented, augmented]
    assert ["feddpms" in line["gflops"] for line in history] == [False, False, False, True, False]  # asked once


@pytest.mark.parametrize(("rounds", "share", "last"), [(50, 0.4, 20), (50, 0.3, 15), (50, 0.5, 25), (1, 0.4, 1)])
def test_the_last_round_of_the_first_stage(rounds, share, last):
    config = configure(**QUICK | {"rounds": rounds, "feddpms.first_stage": share})
    assert config.parts[0].switch(config) == last


def test_decoders_are_personal_then_averaged_once_then_fixed(recorded):
    result, seen, counts, decoder, layout = recorded
    first, sizes = seen[1, 0]["global"][decoder], counts.sum(1)
    for k in range(4):
        assert torch.equal(seen[2, k]["global"][decoder], first)  # nothing was uploaded yet
        assert torch.equal(seen[2, k]["began"][decoder], seen[1, k]["ended"][decoder])
        assert not torch.equal(seen[1, k]["ended"][decoder], first)
    assert not torch.equal(seen[2, 0]["began"][decoder], seen[2, 1]["began"][decoder])
    mean = sum(n * seen[2, k]["ended"][decoder].double().numpy() for k, n in enumerate(sizes)) / sizes.sum()
    np.testing.assert_allclose(seen[3, 0]["global"][decoder], mean, rtol=1e-5, atol=1e-6)
    for t in (3, 4, 5):
        for k in range(4):
            assert torch.equal(seen[t, k]["global"][decoder], seen[3, 0]["global"][decoder])
            assert torch.equal(seen[t, k]["began"], seen[t, k]["global"])
            assert torch.equal(seen[t, k]["ended"][decoder], seen[t, k]["began"][decoder])
    final = layout.view(seen[5, 0]["ended"], "decoder.0.weight")
    assert np.array_equal(result.models[0]["decoder.0.weight"], final.numpy())


def test_encoder_and_classifier_are_averaged_in_the_first_stage_too(recorded):
    _, seen, counts, decoder, _ = recorded
    sizes = counts.sum(1)
    mean = sum(n * seen[1, k]["ended"].double().numpy() for k, n in enumerate(sizes)) / sizes.sum()
    np.testing.assert_allclose(seen[2, 0]["global"][~decoder], mean[~decoder], rtol=1e-5, atol=1e-6)


def test_bytes_are_those_of_what_is_sent(recorded):
    """The decoder goes up and down once; an exchange is about labels, so that the model is not sent for it."""
    history, decoder = recorded[0].history, recorded[3]
    model, decoder_bytes = 4 * int((~decoder).sum()), 4 * int(decoder.sum())
    up, down = ([line[key] // 4 - model for line in history] for key in ("bytes_up", "bytes_down"))
    means = up[2]
    weight, scarce, matched = 4, 2 * 8, 4 * 8  # of a client, or sent to it: who got which images
    assert up == [0, decoder_bytes + weight, means, scarce, 0]
    assert down == [0, 0, decoder_bytes + means, matched, 0]


# -- sharing ---------------------------------------------------------------------------------------------------------


class Sorter(nn.Module):
    """A latent is its own image; the class is 1 where its first value is positive, else 0."""

    def decoder(self, z):
        return z

    def forward(self, x):
        positive = (x[:, 0] > 0).float()
        return torch.stack([1 - positive, positive, torch.zeros_like(positive)], 1)


@pytest.mark.parametrize("tries", [1, 2, 50])
def test_the_filter_and_the_quota(tries):
    means, labels = np.array([[0.3, 1.0], [0.0, 0.0], [0.5, 0.5]], dtype=np.float32), [1, 2, 0]
    limits = torch.zeros(()), torch.ones(())
    z, found = latents.usable(
        Sorter(), torch.from_numpy(means), torch.tensor(labels), 2.0, stream(0, "x"), limits, 5, tries
    )
    draw, expected, expected_labels = stream(0, "x"), [], []
    for mean, label in zip(means, labels, strict=True):
        kept = []
        for _ in range(tries):
            if len(kept) >= 5:
                break
            for candidate in mean + np.float32(2) * draw.standard_normal((5, 2), dtype=np.float32):
                if label == int(candidate[0] > 0):
                    kept.append(candidate)
        expected += kept[:5]
        expected_labels += [label] * len(kept[:5])
    np.testing.assert_allclose(z, expected, rtol=1e-6)
    assert found.tolist() == expected_labels
    assert 2 not in found  # never predicted: the cap ends it, and it stays empty
    assert (len(found) == 10) == (tries == 50)


def test_means_are_of_the_most_abundant_classes_it_has():
    module = build("feddpms-vae", (1, 8, 8), 5, seed=3).eval()
    x, y = torch.randn(9, 1, 8, 8), torch.tensor([4, 4, 1, 1, 3, 3, 3, 0, 4])
    means, labels, samples = latents.abundant_means(module, x, y, 5, 4, 4)
    assert labels.tolist() == [3, 4, 1, 0]  # 3 and 4 have as many; nothing of class 2
    assert samples.tolist() == [3, 3, 2, 1]
    with torch.no_grad():
        features = module.features(x)
    for mean, label in zip(means, labels, strict=True):
        torch.testing.assert_close(mean, features[y == label].mean(0))
    assert latents.abundant_means(module, x, y, 5, 4, 2)[1].tolist() == [3, 4]


def test_what_was_shared(recorded):
    result, _, counts, _, _ = recorded
    table, line = result.shared["feddpms"], result.history[2]
    assert set(column(table, "round")) == {3}
    assert table.num_rows == line["feddpms.means"] > 0
    clients, labels = column(table, "client"), column(table, "label")
    asked = 0
    for k in range(4):
        most = [c for c in np.argsort(-counts[k], kind="stable")[:2] if counts[k, c]]
        asked += len(most)
        shared = np.bincount(labels[clients == k], minlength=5)
        assert set(np.flatnonzero(shared)) <= set(most)
        assert shared.max() <= 6
    assert line["feddpms.missing"] == 6 * asked - table.num_rows
    latent_bytes = table.num_rows * (32 * 4 + 8)
    assert line["bytes_up"] - result.history[4]["bytes_up"] == latent_bytes
    decoder_bytes = 4 * int(recorded[3].sum())
    assert line["bytes_down"] - result.history[4]["bytes_down"] == latent_bytes + 4 * decoder_bytes
    pixels = blobs(train=160, test=40).train.x.astype(np.float64)
    black, white = ((value - pixels.mean()) / pixels.std() for value in (0, 255))
    assert black - 1e-4 <= images_of(table).min() < images_of(table).max() <= white + 1e-4


# -- matching and augmentation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "offered", "matched"),
    [
        ({0: {1, 2, 3}}, {1: {1, 5}, 2: {1, 2}, 3: {3}}, {0: 2}),
        ({0: {1, 2}}, {5: {1}, 3: {2}, 4: {1}}, {0: 3}),  # equals: the lowest id
        ({0: {1, 2}}, {0: {1, 2}, 9: {1}}, {0: 9}),  # not itself
        ({0: {1}, 4: {2}}, {3: {2}}, {4: 3}),  # nobody has what 0 wants: it waits
        ({0: {1}, 4: {1}}, {3: {1}}, {0: 3, 4: 3}),  # one may help several
        ({0: {1}}, {}, {}),
    ],
)
def test_matching(wanted, offered, matched):
    assert latents.match(wanted, offered) == matched


def test_augmented_clients_draw_as_many_points_as_they_own_from_both(recorded):
    result, seen, counts, _, _ = recorded
    table = result.shared["feddpms"]
    clients, labels = column(table, "client"), column(table, "label")
    offered = {j: set(labels[clients == j].tolist()) for j in range(4)}
    drawn_synthetic = 0
    for k in range(4):
        assert [seen[t, k]["all"] for t in (1, 2, 3)] == [counts[k].sum()] * 3
        wanted = set(np.argsort(counts[k], kind="stable")[:2].tolist())
        best = max((len(wanted & theirs), -j) for j, theirs in offered.items() if j != k and theirs)
        sharer = -best[1] if best[0] else None  # nobody has what it lacks
        for t in (4, 5):  # augmented once, from the same images ever after
            now = seen[t, k]
            own, everything = now["own"], now["all"]
            assert own == counts[k].sum()
            assert (everything > own) == (sharer is not None)
            assert np.array_equal(now["labels"][own:], labels[clients == sharer])
            np.testing.assert_array_equal(now["images"][own:], images_of(table)[clients == sharer])
            points, draw = torch.from_numpy(np.concatenate(now["batches"])), stream(3, "batches", t, k)
            assert np.array_equal(points, np.concatenate([draw.permutation(everything)[:own] for _ in range(3)]))
            drawn_synthetic += int((points >= own).sum())
    assert drawn_synthetic > 0


def test_weights_are_what_clients_draw_from(recorded):
    _, seen, _, decoder, _ = recorded
    sizes = [seen[4, k]["all"] for k in range(4)]
    assert any(seen[4, k]["own"] < size for k, size in enumerate(sizes))
    mean = sum(n * seen[4, k]["ended"].double().numpy() for k, n in enumerate(sizes)) / sum(sizes)
    np.testing.assert_allclose(seen[5, 0]["global"][~decoder], mean[~decoder], rtol=1e-5, atol=1e-6)


def test_uniform_weighting_stays_uniform():
    part = configure(**QUICK).parts[0]
    client = make_client(t=4, weighting="uniform")
    assert part.weight(client) is None


def test_with_few_active_each_shares_once_and_is_augmented_once():
    runner = InProcess()
    settings = QUICK | {"clients": 6, "active": 2, "rounds": 9, "feddpms.first_stage": 0.2}
    result = simulate(blobs(train=160, test=40), runner, **settings)
    table = result.shared["feddpms"]
    pairs = set(zip(column(table, "client").tolist(), column(table, "round").tolist(), strict=True))
    assert len(pairs) == len(set(column(table, "client").tolist())) > 2  # more come to it, nobody twice
    assert runner.server.state["feddpms"]["augmented"] <= 6
    counts = [line["feddpms.augmented"] for line in result.history[2:]]
    assert counts == sorted(counts)
    assert counts[-1] > 0


def test_a_client_that_is_skipped_once_matched_is_augmented_a_round_later(recorded):
    """And then nobody is asked any more."""
    undisturbed, seen = recorded[0], recorded[1]
    (late, *_) = [k for k in range(4) if seen[4, k]["all"] > seen[4, k]["own"]]
    doomed = {"doomed.how": "raises", "doomed.round": 4, "doomed.client": late}
    settings = {"method": "feddpms+tests.parts.doomed", "rounds": 7, "feddpms.first_stage": 0.3}  # 2 rounds, as before
    runner = InProcess()
    result = simulate(
        blobs(train=160, test=40), runner, on_client_error="skip", client_retries=0, **QUICK | settings | doomed
    )
    everyone = undisturbed.history[4]["feddpms.augmented"]
    assert [line.get("skipped", 0) for line in result.history] == [0, 0, 0, 1, 0, 0, 0]
    counts = [line["feddpms.augmented"] for line in result.history[2:]]
    assert counts == [0, everyone - 1, everyone, everyone, everyone]
    asked = ["feddpms" in line["gflops"] for line in result.history]
    assert asked == [False, False, False, True, True, False, False]
    assert "skipped" not in runner.server.state["feddpms"]


# -- one release -----------------------------------------------------------------------------------------------------


def test_one_noisy_mean_per_class_is_varied_at_the_server():
    settings = QUICK | {"feddpms.release": "once", "feddpms.noise": 0.3, "feddpms.variation": 0.5}
    result = simulate(blobs(train=160, test=40), **settings)
    line = result.history[2]
    sent = line["bytes_up"] - result.history[4]["bytes_up"]
    assert sent == (line["feddpms.means"] + line["feddpms.missing"]) // 6 * (32 * 4 + 8)  # one where there were six
    assert result.shared["feddpms"].num_rows == line["feddpms.means"] > 6
    assert certified(result)["epsilon"].value > 0
    assert " 1 releases" in certified(result)["epsilon"].note
    assert comparable(result) == comparable(simulate(blobs(train=160, test=40), InProcess(3), **settings))


def certified(result):
    found = [figure for figure in result.privacy if figure.name.startswith("feddpms.")]
    return {figure.name.removeprefix("feddpms."): figure for figure in found}


def test_the_papers_filter_has_no_certificate(recorded):
    result, _, counts, _, _ = recorded
    fewest = min(counts[k, c] for k in range(4) for c in np.argsort(-counts[k], kind="stable")[:2] if counts[k, c])
    told = certified(result)
    assert told["epsilon"].value is None
    assert told["epsilon"].note == "no certificate (private filter)"
    assert f" 6 releases, fewest samples {fewest};" in told["epsilon_without_filter"].note
    assert told["paper_epsilon"].value == pytest.approx(np.sqrt(2 * np.log(1.25e5)) / (fewest * 0.5))


# -- as a whole ------------------------------------------------------------------------------------------------------


def test_no_weight_and_no_exchange_is_fedavg():
    settings = QUICK | {"rounds": 3}
    off = {"feddpms.vae_weight": 0, "feddpms.quota": 0}
    plain = {key: value for key, value in settings.items() if "." not in key} | {"method": "fedavg"}
    neutral = simulate(**settings | off)
    assert comparable(neutral) == comparable(simulate(**plain))
    assert certified(neutral)["epsilon"].note == "nothing was shared"


def test_the_number_of_workers_changes_nothing(recorded):
    several = simulate(blobs(train=160, test=40), InProcess(3), **QUICK)
    assert comparable(several)[0] == recorded[0].model_sha256
    assert np.array_equal(images_of(several.shared["feddpms"]), images_of(recorded[0].shared["feddpms"]))


def test_what_it_keeps_is_in_its_checkpoints(tmp_path):
    """The last round is taken back and done again, by clients that know whose images they have."""
    whole, again = tmp_path / "whole", tmp_path / "again"
    words = {
        "method": "feddpms", "model": "feddpms-vae", "image-size": 8, "train-size": 120, "test-size": 40, "clients": 4,
        "rounds": 5, "batch-size": 16, "optimizer": "adam", "lr": 5e-3, "local-epochs": 3, "feddpms.quota": 4,
        "feddpms.tries": 3, "feddpms.noise": 0.5,
    }  # fmt: skip
    flags = [word for key, value in words.items() for word in (f"--{key}", str(value))]
    assert main(["run", "--in-process", *flags, "--out", str(whole)]) == 0
    shutil.copytree(whole, again)
    (again / "checkpoints" / "round-00005.json").unlink()
    (again / "summary.json").unlink()
    assert main(["resume", str(again)]) == 0
    assert '"resumed", "round": 4' in (again / "events.jsonl").read_text()
    assert results(again) == results(whole)
    assert results(whole)[1][3]["feddpms.augmented"] > 0


def test_other_parts_beside_it():
    parts = simulate(blobs(train=80, test=40), **QUICK | {"method": "fedprox+feddpms+fedhkd", "rounds": 4})
    assert [sorted(line["terms"]) for line in parts.history] == [
        ["feddpms", "fedprox"], ["feddpms", "fedhkd", "fedprox"], ["fedhkd", "fedprox"], ["fedhkd", "fedprox"],
    ]  # fmt: skip


def test_shapes():
    shapes = load("shapes", train_size=48, test_size=20, seed=0)
    settings = {"model": "feddpms-cifar-vae", "clients": 2, "active": 2, "rounds": 3, "feddpms.first_stage": 0.3}
    result = simulate(shapes, **QUICK | settings)
    assert result.history[1]["feddpms.means"] + result.history[1]["feddpms.missing"] > 0
    assert np.isfinite(result.history[-1]["loss"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "mlp"}, r"needs a model that decodes; use --model feddpms-vae or feddpms-cifar-vae$"),
        ({"feddpms.vae_weight": 0}, r"^--feddpms.vae-weight 0 trains no decoder .* add --feddpms.quota 0$"),
        ({"method": "feddpms+fedensemble"}, r"fedensemble has several models, feddpms one; leave one out$"),
        ({"fuse": 2}, r"^--fuse: the loss of feddpms is written for one client at a time; use --fuse 1$"),
    ],
)
def test_what_does_not_go_together(settings, message):
    with pytest.raises(InputError, match=message) as caught:
        configure(**QUICK | settings)
    assert "\n" not in str(caught.value)
