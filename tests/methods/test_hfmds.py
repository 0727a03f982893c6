"""HFMDS-FL equation by equation, against NumPy, finite differences and autograd written out here."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from raysim.config import resolve
from raysim.data.normalisation import Normalisation
from raysim.data.synthetic_tables import column, images_of
from raysim.errors import InputError
from raysim.methods.common.features import class_activation, hard_features, matching_loss
from raysim.methods.hfmds import HFMDS
from raysim.models import build
from raysim.models.flat import FlatModel
from raysim.rng import stream
from raysim.training.client import Client
from tests.simulate import blobs, comparable, configure, federated, simulate, told_to

LETTER = {
    "layer": "features", "match": "kl", "match_weight": 1.0, "cam": "relu", "label_weight": 1.0, "mu": 0.5,
    "noise": 1.0, "clamp": False, "levels": 0, "tv": 0.0,
}  # fmt: skip
QUICK = {"method": "hfmds", "hfmds.every": 2, "hfmds.first": 2, "hfmds.steps": 4, "hfmds.per_client": 12, "rounds": 4}
QUICK |= {f"hfmds.{key}": value for key, value in LETTER.items() if key != "mu"}  # which the alias fmds implies


@pytest.fixture
def client():
    """A client with 30 images of classes 0, 1 and 3 out of 5, holding the global model."""
    torch.manual_seed(1)
    model = FlatModel(build("mlp", (1, 8, 8), 5, seed=3).eval(), torch.device("cpu"))
    x, y = torch.randn(30, 1, 8, 8), torch.tensor([0, 1, 3] * 10)
    scale = Normalisation((120.0,), (60.0,)).on(torch.device("cpu"))
    config = configure(method="hfmds", **{"hfmds.layer": "features"})
    return Client(7, 20, config, 5, model, model.weights.clone(), x, y, {}, {"hfmds": {}}, {}, scale)


def synthesise(part, client, real, labels, prototypes, start):
    """The images alone."""
    draw = np.random.default_rng(0)
    return part.synthesise(client.model.module, real, labels, prototypes, start, client.pixel_range(), draw)[0]


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_eq_8_class_activation_is_the_derivative_of_the_logit(client):
    head, z = client.model.module.head, torch.randn(4, 64, dtype=torch.float64)
    labels = torch.tensor([0, 4, 2, 2])
    double = nn.Linear(64, 5).double()
    double.load_state_dict({k: v.double() for k, v in head.state_dict().items()})
    for sample, label in enumerate(labels):
        for i in (0, 13, 63):
            up, down = z[sample].clone(), z[sample].clone()
            up[i] += 1e-4
            down[i] -= 1e-4
            slope = (double(up)[label] - double(down)[label]) / 2e-4
            assert class_activation(head, z.float(), labels)[sample, i].item() == pytest.approx(slope.item(), abs=1e-6)
    assert torch.equal(class_activation(head, z.float(), labels), head.weight[labels])


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_eqs_9_and_11_matching_losses(temperature):
    draw = np.random.default_rng(0)
    made, real = draw.normal(0, 1, (6, 10)), draw.normal(0, 1, (6, 10))
    p, q = softmax(made / temperature), softmax(real / temperature)
    up, uq = np.maximum(made, 0) + 1e-8, np.maximum(real, 0) + 1e-8
    up, uq = up / up.sum(1, keepdims=True), uq / uq.sum(1, keepdims=True)
    expected = {
        "kl": (p * np.log(p / q)).sum(1),
        "kl-reverse": (q * np.log(q / p)).sum(1),
        "kl-sum": (up * np.log(up / uq)).sum(1),
        "mse": ((made - real) ** 2).mean(1),
        "relative": ((made - real) ** 2).sum(1) / (real**2).sum(1),
    }
    for how, values in expected.items():
        got = matching_loss(torch.from_numpy(made), torch.from_numpy(real), how, temperature).numpy()
        np.testing.assert_allclose(got, values, rtol=1e-9, err_msg=how)


def test_eq_10_hard_features_by_hand():
    z, prototype = torch.tensor([[1.0, 4.0]]), torch.tensor([[2.0, 2.0]])
    assert hard_features(z, prototype, 0.5).tolist() == [[0.5, 5.0]]  # away from the prototype
    assert hard_features(z, prototype, -0.5).tolist() == [[1.5, 3.0]]  # half-way towards it
    assert torch.equal(hard_features(z, prototype, 0.0), z)
    assert torch.equal(hard_features(z, None, 0.0), z)


def test_eq_12_one_step_of_adam_on_the_summed_objective(client):
    """Against a float64 objective written out here; Adam's first step is −lr·g/(|g| + ε)."""
    real, labels = client.x[:6], client.y[:6]
    prototypes, noise = torch.randn(6, 64), torch.randn(6, 1, 8, 8)
    part = HFMDS(**LETTER | {"steps": 1, "lr": 0.02, "match_weight": 3.0})
    made = synthesise(part, client, real, labels, prototypes, noise)

    module = build("mlp", (1, 8, 8), 5, seed=3).double()
    x = noise.double().requires_grad_()
    target = 1.5 * module.features(real.double()) - 0.5 * prototypes.double()
    mask = torch.relu(module.head.weight[labels])
    p, q = (torch.softmax(z * mask, 1) for z in (module.features(x), target))
    objective = F.cross_entropy(module(x), labels, reduction="sum") + 3.0 * (p * (p / q).log()).sum()
    (gradient,) = torch.autograd.grad(objective, [x])
    expected = noise.double() - 0.02 * gradient / (gradient.abs() + 1e-8)
    clear = gradient.abs() > 1e-5  # where the sign is beyond rounding
    assert clear.float().mean() > 0.95
    assert torch.allclose(made.double()[clear], expected[clear], atol=1e-4)


def test_synthesis_leaves_the_model_alone_and_lowers_its_objective(client):
    before = client.model.weights.clone()
    losses = []
    for steps in (0, 100):
        part = HFMDS(**LETTER, steps=steps)
        made = synthesise(part, client, client.x, client.y, torch.zeros(30, 64), torch.randn(30, 1, 8, 8))
        losses.append(F.cross_entropy(client.model.module(made), client.y).item())
    assert losses[1] < 0.5 * losses[0]
    assert torch.equal(client.model.weights, before)
    assert not client.model.gradients.any()
    assert all(p.requires_grad for p in client.model.parameters)


@pytest.mark.parametrize("weight", [1.0, "auto"])
def test_each_image_evolves_by_itself(client, weight):
    part = HFMDS(**LETTER | {"match_weight": weight}, steps=20)
    noise, prototypes = torch.randn(10, 1, 8, 8), torch.randn(10, 64)
    together = synthesise(part, client, client.x[:10], client.y[:10], prototypes, noise)
    alone = synthesise(part, client, client.x[4:5], client.y[4:5], prototypes[4:5], noise[4:5])
    assert torch.allclose(together[4:5], alone, atol=1e-4)


def test_clamping_keeps_pixels_real(client):
    part = HFMDS(**LETTER | {"clamp": True}, steps=50, lr=0.5)
    made = synthesise(part, client, client.x, client.y, torch.zeros(30, 64), torch.randn(30, 1, 8, 8))
    pixels = made * 60 + 120
    assert pixels.min() >= -1e-3
    assert pixels.max() <= 255 + 1e-3


def test_prototypes_momentum_first_time_and_absent_classes(client):
    part = HFMDS(**LETTER, momentum=0.25)
    rounds = [torch.randn(30, 64), torch.randn(20, 64)]
    part.begin(client)
    step = type("Step", (), {"features": rounds[0], "real_y": client.y})()
    part.loss(client, step)
    part.end(client)
    held = client.state["hfmds"]
    assert held["known"].tolist() == [True, True, False, True, False]
    first = {c: rounds[0][client.y == c].mean(0) for c in (0, 1, 3)}
    for c, mean in first.items():
        assert torch.allclose(held["prototypes"][c], mean, atol=1e-6)

    labels = torch.tensor([0, 2] * 10)  # class 1 is not seen this time, class 2 is new
    part.begin(client)
    part.loss(client, type("Step", (), {"features": rounds[1], "real_y": labels})())
    part.end(client)
    held = client.state["hfmds"]
    assert held["known"].tolist() == [True, True, True, True, False]
    moved = 0.75 * rounds[1][labels == 0].mean(0) + 0.25 * first[0]
    assert torch.allclose(held["prototypes"][0], moved, atol=1e-6)
    assert torch.allclose(held["prototypes"][1], first[1], atol=1e-6)
    assert torch.allclose(held["prototypes"][2], rounds[1][labels == 2].mean(0), atol=1e-6)


def test_a_missing_prototype_is_the_global_models_mean_feature_and_is_not_kept(client):
    with torch.no_grad():
        features = client.model.module.features(client.x)
    part = HFMDS(**LETTER)
    fresh = part.prototypes(client)
    for c in (0, 1, 3):
        assert torch.allclose(fresh[c], features[client.y == c].mean(0), atol=1e-6)
    assert client.state["hfmds"] == {}
    known = torch.tensor([True, False, False, False, False])
    client.state["hfmds"] = {"prototypes": torch.full((5, 64), 9.0), "known": known}
    mixed = part.prototypes(client)
    assert mixed[0].eq(9).all()
    assert torch.allclose(mixed[1], fresh[1])


def test_prototypes_of_maps_are_the_class_means_of_the_global_models_maps(client):
    model = FlatModel(build("fedpa-cnn", (1, 8, 8), 5, seed=3).eval(), torch.device("cpu"))
    part, config = HFMDS(), configure(method="hfmds", model="fedpa-cnn", eval_batch=7)
    assert not part.keeps_prototypes(model.module)
    found = part.prototypes(replace(client, model=model, config=config))
    other = build("fedpa-cnn", (1, 8, 8), 5, seed=3).eval().double()
    maps = other.maps(client.x.double()).detach()
    assert found.shape == (5, maps.shape[1])
    for c in (0, 1, 3):
        assert torch.allclose(found[c].double(), maps[client.y == c].mean(0), atol=1e-5)


def test_eq_6_real_and_synthetic_batches_weighted_by_alpha():
    """One client, one step of plain SGD after a synthesis: the gradient is α·real + (1 − α)·synthetic."""
    settings = {
        "method": "hfmds", "clients": 1, "active": 1, "rounds": 1, "local_steps": 1, "momentum": 0, "lr": 0.1,
        "batch_size": 400, "hfmds.every": 1, "hfmds.steps": 3, "hfmds.per_client": 20, "hfmds.alpha": 0.3,
        "hfmds.layer": "features", "hfmds.first": 1,
    }  # fmt: skip
    dataset = blobs()
    result = simulate(dataset, **settings)
    table = result.shared["hfmds"]
    rows = stream(3, "hfmds/batches", 1, 0).integers(20, size=400)
    made, made_y = torch.from_numpy(images_of(table)[rows]), torch.from_numpy(column(table, "label")[rows])
    x = torch.from_numpy(dataset.train.x.astype(np.float64))
    x = ((x - x.mean()) / x.std(correction=0)).float()
    module = build("mlp", (1, 8, 8), 5, seed=3)
    loss = 0.3 * F.cross_entropy(module(x), torch.from_numpy(dataset.train.y))
    loss = loss + 0.7 * F.cross_entropy(module(made), made_y)
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    for (name, p), g in zip(module.named_parameters(), gradients, strict=True):
        np.testing.assert_allclose(result.models[0][name], (p - 0.1 * g).detach().numpy(), atol=2e-6)


def test_the_shared_dataset_has_everyones_images_with_their_source():
    dataset = blobs()
    result = simulate(dataset, **QUICK | {"hfmds.per_client": 60})
    table = result.shared["hfmds"]
    from tests.data.dealing import partition

    dealt = partition(dataset.train.y, 5, kind="dirichlet", clients=10, seed=3, beta=0.5)
    sizes = np.minimum(dealt.sizes, 60)
    assert sizes.min() < 60 < dealt.sizes.max()  # some clients have fewer than B_g
    assert np.array_equal(column(table, "client"), np.repeat(np.arange(10), sizes))
    assert set(column(table, "round")) == {4}
    assert images_of(table).shape == (sizes.sum(), 1, 8, 8)
    assert not images_of(table).flags.writeable
    counts = dealt.counts(dataset.train.y, 5)
    for client in range(10):
        mine = column(table, "label")[column(table, "client") == client]
        assert (np.bincount(mine, minlength=5) <= counts[client]).all()
    assert [line.get("psnr") is not None for line in result.history] == [False, True, False, True]


def test_the_psnr_of_a_run_is_of_pixels():
    """Of each client's images beside the real ones that they were made from, by its definition."""
    dataset, config = blobs(), configure(**QUICK)
    result = simulate(dataset, **QUICK | {"rounds": 2})
    table, data = result.shared["hfmds"], federated(config, dataset)
    mean, std = data.normalisation.mean[0], data.normalisation.std[0]
    values = []
    for k in range(10):
        x, _ = data.clients.read(k)
        real = x[np.sort(stream(3, "hfmds/rows", 2, k).permutation(len(x))[:12])] / 255
        made = ((images_of(table)[column(table, "client") == k] * std + mean) / 255).clip(0, 1)
        values += (10 * np.log10(1 / ((made - real) ** 2).mean((1, 2, 3)))).tolist()
    assert result.history[1]["hfmds.psnr"] == pytest.approx(np.mean(values), abs=1e-3)


def test_bytes_count_the_images_up_and_the_dataset_down_to_every_client():
    result = simulate(**QUICK | {"rounds": 2})
    quiet, busy = result.history
    table, model = result.shared["hfmds"], quiet["bytes_down"] // 6
    image_bytes = images_of(table).nbytes + 8 * table.num_rows
    assert busy["bytes_up"] == quiet["bytes_up"] + image_bytes
    assert busy["bytes_down"] == quiet["bytes_down"] + 10 * model + 10 * table.nbytes


def test_accumulating_keeps_earlier_images():
    table = simulate(**QUICK | {"hfmds.accumulate": True}).shared["hfmds"]
    assert set(column(table, "round")) == {2, 4}
    only_last = simulate(**QUICK | {"hfmds.accumulate": False}).shared["hfmds"]
    assert table.num_rows == 2 * only_last.num_rows
    first = simulate(**QUICK | {"rounds": 2}).shared["hfmds"]
    kept = column(table, "round") == 2
    assert np.array_equal(images_of(table)[kept], images_of(first))
    for name in ("label", "client"):
        assert np.array_equal(column(table, name)[kept], column(first, name))


def test_a_class_nobody_holds():
    dataset = blobs()
    keep = dataset.train.y != 2
    split = type(dataset.train)(dataset.train.x[keep], dataset.train.y[keep])
    result = simulate(replace(dataset, train=split), **QUICK)
    assert 2 not in column(result.shared["hfmds"], "label")
    assert np.isfinite(result.history[-1]["loss"])


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"clients": 100, "hfmds.per_client": 100}, 2),
        ({"clients": 100, "hfmds.per_client": 10}, 13),  # eight groups of about 130 images
        ({"clients": 5, "hfmds.per_client": 4}, 2),
        ({"clients": 100, "hfmds.per_client": 500}, 1),
        ({"clients": 100, "hfmds.per_client": 10, "on_client_error": "skip"}, 1),
        ({"clients": 100, "hfmds.per_client": 10, "hfmds.group": 7}, 7),
    ],
    ids=str,
)
def test_as_many_clients_synthesise_together_as_make_a_batch(settings, size):
    config = configure(method="hfmds", **{"active": 5} | settings)
    assert config.parts[0].group_size(config) == size


@pytest.mark.parametrize("jitter", [0, 2])
def test_grouping_changes_no_image_beyond_rounding(jitter):
    settings = QUICK | {"hfmds.jitter": jitter, "rounds": 2}
    tables = [simulate(**settings | {"hfmds.group": group}).shared["hfmds"] for group in (1, 4)]
    assert np.array_equal(column(tables[0], "client"), column(tables[1], "client"))
    np.testing.assert_allclose(images_of(tables[0]), images_of(tables[1]), atol=1e-4)


def test_fmds_is_hfmds_with_mu_0():
    fmds = simulate(**QUICK | {"method": "fmds"})
    assert comparable(fmds) == comparable(simulate(**QUICK | {"hfmds.mu": 0.0}))
    assert comparable(fmds) != comparable(simulate(**QUICK))
    preset = ("preset", {"method": "hfmds", "hfmds.mu": 0.5})
    assert resolve([preset, ("command line", {"method": "fmds"})]).parts[0].mu == 0
    assert resolve([preset, ("command line", {"method": "fmds", "hfmds.mu": "-1"})]).parts[0].mu == -1


def test_another_part_does_not_shift_its_draws():
    alone = simulate(**QUICK)
    both = simulate(**QUICK | {"method": "fedprox+hfmds", "fedprox.mu": 0})
    assert comparable(alone) == comparable(both)


def test_the_first_synthesis_and_those_after_it():
    def rounds(**own):
        history = simulate(**QUICK | {"rounds": 7} | own).history
        return [line["round"] for line in history if "hfmds.psnr" in line]

    assert rounds(**{"hfmds.every": 3, "hfmds.first": "every"}) == [3, 6]
    assert rounds(**{"hfmds.every": 3, "hfmds.first": 1}) == [1, 4, 7]
    assert rounds(**{"hfmds.every": 20, "hfmds.first": 2}) == [2]


def test_sharing_real_images_takes_those_that_a_synthesis_would_match():
    dataset, told = blobs(), []
    real = simulate(dataset, **QUICK | {"hfmds.share": "real"}, on_event=told_to(told))
    made = simulate(dataset, **QUICK)
    table = real.shared["hfmds"]
    assert np.array_equal(column(table, "label"), column(made.shared["hfmds"], "label"))
    assert np.array_equal(column(table, "client"), column(made.shared["hfmds"], "client"))
    data = federated(configure(**QUICK), dataset)
    x, _ = data.clients.read(3)
    rows = np.sort(stream(3, "hfmds/rows", 4, 3).permutation(len(x))[:12])
    mean, std = data.normalisation.mean[0], data.normalisation.std[0]
    own = images_of(table)[column(table, "client") == 3]
    np.testing.assert_allclose(own * std + mean, x[rows], atol=1e-3)
    assert [line.get("psnr") for line in real.history] == [None] * 4  # which of equal images says nothing
    assert all(kind == "notice" and "REAL images" in details["text"] for kind, details in told)
    assert [details["round"] for _, details in told] == [2, 4]
    (figure,) = [f for f in real.privacy if f.name == "hfmds.epsilon"]
    assert figure.note == "no certificate: real images are shared as they are"


def test_an_inert_matching_loss_is_said_and_auto_wakes_it():
    told = []
    simulate(**QUICK | {"hfmds.match_weight": 1e-6, "rounds": 2}, on_event=told_to(told))
    assert [kind for kind, _ in told] == ["notice"]
    assert "the matching loss is inert: its gradient is" in told[0][1]["text"]
    told.clear()
    result = simulate(**QUICK | {"hfmds.match_weight": "auto", "hfmds.match_share": 0.5}, on_event=told_to(told))
    assert not told
    assert result.history[1]["hfmds.ratio"] == pytest.approx(0.5, rel=1e-4)


def test_images_that_give_their_sources_away_are_said_to():
    told = []
    default = {"method": "hfmds", "hfmds.mu": 0.0, "hfmds.per_client": 12, "rounds": 1}
    near = simulate(**default, on_event=told_to(told))
    assert near.history[0]["hfmds.recognised"] > 0.9
    assert [(kind, "which real ones they were made from" in details["text"]) for kind, details in told] == [
        ("notice", True)
    ]
    told.clear()
    noise = simulate(**default | {"hfmds.steps": 0}, on_event=told_to(told))
    assert noise.history[0]["hfmds.recognised"] < 0.25
    assert not told


def test_what_is_recorded_of_a_synthesis():
    lines = simulate(**QUICK).history
    always = {"hfmds.psnr", "hfmds.ce_end", "hfmds.recognised"}
    names = always | {"hfmds.matching_start", "hfmds.matching_end", "hfmds.cosine_end"}
    assert names | {"hfmds.ratio"} <= lines[1].reported.keys()
    assert not names & lines[2].reported.keys()
    unmatched = simulate(**QUICK | {"hfmds.match": "none"}).history[1].reported.keys()
    assert always == {name for name in unmatched if name.startswith("hfmds.")}


@pytest.mark.parametrize("own", [{"mu": 0.0}, {"match": "none"}, {"match_weight": 0.0}, {"share": "real"}])
def test_prototypes_that_nothing_needs_are_not_kept(own, client):
    part = HFMDS(**LETTER | own)
    part.begin(client)
    part.loss(client, type("Step", (), {"features": torch.randn(30, 64), "real_y": client.y})())
    part.end(client)
    assert client.state["hfmds"] == {}


def test_settings_that_make_no_sense_are_one_line():
    with pytest.raises(InputError, match=r"--hfmds.layer maps: --model mlp has none; use features, or one of"):
        configure(method="hfmds", **{"hfmds.layer": "maps"})
    with pytest.raises(InputError, match=r"leave no loss; give one a weight"):
        configure(method="hfmds", **{"hfmds.layer": "features", "hfmds.match": "none", "hfmds.tv": 0})
    with pytest.raises(InputError, match=r"--hfmds.levels.* 16"):
        configure(method="hfmds", **{"hfmds.layer": "features", "hfmds.levels": 17})
    with pytest.raises(InputError, match=r"--hfmds.match-weight must be a number or auto, not 'much'"):
        configure(method="hfmds", **{"hfmds.match_weight": "much"})
