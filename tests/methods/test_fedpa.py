"""FedPA equation by equation, against NumPy and float64 autograd written out here."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from raysim.engine.in_process import InProcess
from raysim.methods.base import Uploads
from raysim.methods.common.feature_generator import (
    class_distances,
    diversity,
    draw_inputs,
    fidelity,
    nearest_prototype,
    prototype_distance,
)
from raysim.methods.fedpa import FedPA
from raysim.models import build
from raysim.models.flat import FlatModel
from raysim.models.generator import build_generator
from raysim.rng import stream
from raysim.tensors import to_device, to_host
from raysim.training.client import Client, Step, train
from tests.simulate import blobs, comparable, configure, simulate

QUICK = {"method": "fedpa", "fedpa.gen_steps": 5, "rounds": 3}
OFF = {"fedpa.lambda_ge": 0, "fedpa.lambda_po": 0, "fedpa.gamma_fid": 0, "fedpa.gamma_div": 0, "fedpa.gamma_ad": 0}
CPU = torch.device("cpu")


def make_client(model="mlp", broadcast=None, t=2, **settings):
    """Client 7 with 30 images of classes 0, 1 and 3 out of 5, holding the global model."""
    torch.manual_seed(1)
    flat = FlatModel(build(model, (1, 8, 8), 5, seed=3).eval(), CPU)
    x, y = torch.randn(30, 1, 8, 8), torch.tensor([0, 1, 3] * 10)
    config = configure(**{"method": "fedpa", "eval_batch": 8, "batch_size": 16} | settings)
    return Client(7, t, config, 5, flat, flat.weights.clone(), x, y, {"fedpa": broadcast or {}}, {"fedpa": {}})


def make_broadcast(known=(True, True, True, False, True)):
    """As from a server whose generator has seen training, so that its batch-norm has statistics of its own."""
    torch.manual_seed(2)
    generator = FlatModel(build_generator(32, 5, 64, seed=5).train(), CPU)
    for _ in range(5):
        generator.module(1 + 2 * torch.randn(16, 32), torch.randint(5, (16,)))
    known = torch.tensor(known)
    prototypes = torch.randn(5, 64) * known[:, None]
    counts = torch.tensor([4.0, 0.0, 3.0, 2.0, 1.0])
    return {"generator": generator.weights, "counts": counts, "prototypes": prototypes, "known": known}


def run_server(**settings):
    """A server after one round."""
    runner = InProcess()
    simulate(runner=runner, **QUICK | {"rounds": 1} | settings)
    return runner.server


def numpy_ce(z, weight, bias, y):
    logits = weight @ z + bias
    return np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[y]


def made_in_evaluation_mode(generator, noise, labels):
    """The generator's formula with its running statistics, in NumPy."""
    norm = generator.layers[1]
    p = {k: v.detach().double().numpy() for k, v in generator.state_dict().items()}
    h = np.concatenate([noise, np.eye(5)[labels]], 1) @ p["layers.0.weight"].T + p["layers.0.bias"]
    h = (h - p["layers.1.running_mean"]) / np.sqrt(p["layers.1.running_var"] + norm.eps)
    h = np.maximum(h * p["layers.1.weight"] + p["layers.1.bias"], 0)
    return h @ p["layers.3.weight"].T + p["layers.3.bias"]


# -- prototypes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mlp", "fedpa-cnn"])  # one without and one with batch-norm
def test_eq_2_prototypes_are_the_trained_models_mean_features_in_evaluation_mode(model):
    client = make_client(model, t=1)
    train(client)
    upload = FedPA().end(client)
    trained = build(model, (1, 8, 8), 5, seed=0).eval()
    trained.load_state_dict({k: torch.from_numpy(v) for k, v in client.model.export(client.model.weights).items()})
    features = trained.features(client.x).detach().numpy()
    assert upload.sum["counts"].tolist() == [10, 10, 0, 10, 0]
    for c in (0, 1, 3):
        mean = features[client.y.numpy() == c].mean(0)
        np.testing.assert_allclose(upload.sum["features"][c] / 10, mean, rtol=1e-4, atol=1e-5)
    assert not upload.sum["features"][[2, 4]].any()


def test_eq_2_and_3_in_a_run_of_one_client():
    dataset, runner = blobs(), InProcess()
    result = simulate(dataset, runner, **QUICK | {"clients": 1, "active": 1, "rounds": 1})
    module = build("mlp", (1, 8, 8), 5, seed=0)
    module.load_state_dict({k: torch.from_numpy(v) for k, v in result.models[0].items()})
    x = torch.from_numpy(dataset.train.x.astype(np.float64))
    features = module.features(((x - x.mean()) / x.std(correction=0)).float()).detach().numpy()
    for c in range(5):
        expected = features[dataset.train.y == c].mean(0)
        np.testing.assert_allclose(runner.server.state["fedpa"]["prototypes"][c], expected, atol=1e-5)


def test_eq_3_averages_by_counts_and_a_class_of_no_active_client_keeps_its_last():
    server, part, draw = run_server(), FedPA(lambda_ge=0), np.random.default_rng(0)
    server.state["fedpa"] = {}
    local, counts = draw.normal(0, 1, (3, 5, 64)), np.array([[2, 0, 5, 0, 0], [1, 0, 0, 0, 3], [0, 0, 4, 0, 1]])

    def update(clients):
        sums = {"features": (local * counts[:, :, None])[clients].sum(0), "counts": counts[clients].sum(0)}
        part.update(server, Uploads({k: torch.from_numpy(v).float() for k, v in sums.items()}, []))
        return server.state["fedpa"]

    state = update([0, 1])
    assert state["known"].tolist() == [True, False, True, False, True]
    expected = (2 * local[0, 0] + 1 * local[1, 0]) / 3
    np.testing.assert_allclose(state["prototypes"][0], expected, atol=1e-5)
    state = update([2])  # has classes 2 and 4 only
    assert state["known"].tolist() == [True, False, True, False, True]
    np.testing.assert_allclose(state["prototypes"][0], expected, atol=1e-5)
    np.testing.assert_allclose(state["prototypes"][2], local[2, 2], atol=1e-5)
    assert state["counts"].tolist() == [0, 0, 4, 0, 1]  # p̃ is that of the last round's clients


# -- the generator at the server --------------------------------------------------------------------------------------


def test_eq_4_the_generator_has_the_papers_sizes_and_a_seed_of_its_own():
    before = torch.get_rng_state()
    for classes, inputs in ((10, 42), (26, 58)):
        generator = build_generator(32, classes, 32, seed=1)
        shapes = [tuple(p.shape) for p in generator.parameters() if p.ndim == 2]
        assert shapes == [(256, inputs), (32, 256)]
    assert torch.equal(torch.get_rng_state(), before)
    one, same, other = (build_generator(32, 5, 64, seed=s).layers[0].weight for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    sent = make_broadcast()
    model = FlatModel(build_generator(32, 5, 64, seed=0).eval(), CPU)
    model.load(sent["generator"])
    noise, labels = torch.randn(4, 32), torch.tensor([0, 4, 4, 2])
    expected = made_in_evaluation_mode(model.module, noise.numpy(), labels.numpy())
    np.testing.assert_allclose(model.module(noise, labels).detach(), expected, atol=1e-5)


def test_eq_5_fidelity():
    draw = np.random.default_rng(0)
    h, y = draw.normal(0, 1, (6, 8)), np.array([0, 1, 1, 2, 0, 2])
    heads, biases = draw.normal(0, 1, (4, 3, 8)), draw.normal(0, 1, (4, 3))
    counts = np.array([[5, 0, 1], [0, 0, 3], [1, 7, 0], [2, 2, 2]])
    total = 0.0
    for k in range(4):
        for j in range(6):
            share = counts[k, y[j]] / counts[:, y[j]].sum()
            total += share * numpy_ce(h[j], heads[k], biases[k], y[j])
    shares = counts / counts.sum(0)
    got = fidelity(*(torch.from_numpy(v) for v in (h, y, heads, biases, shares)))
    assert got.item() == pytest.approx(total / (6 * 4), rel=1e-12)


def test_eqs_6_and_10_distance_to_the_prototypes():
    draw = np.random.default_rng(0)
    h, prototypes, y = draw.normal(0, 1, (6, 8)), draw.normal(0, 1, (3, 8)), np.array([0, 1, 1, 2, 0, 2])
    norms = [np.sqrt(((h[j] - prototypes[y[j]]) ** 2).sum()) for j in range(6)]
    tensors = [torch.from_numpy(v) for v in (h, y, prototypes)]
    got = prototype_distance(*tensors, torch.tensor([True, True, True])).mean()
    assert got.item() == pytest.approx(sum(norms) / 6, rel=1e-12)
    without = prototype_distance(*tensors, torch.tensor([True, False, True])).mean()  # class 1 has none: adds no term
    assert without.item() == pytest.approx((sum(norms) - norms[1] - norms[2]) / 6, rel=1e-12)


@pytest.mark.parametrize("pairs", ["same", "different", "all"])
def test_eq_7_diversity(pairs):
    draw = np.random.default_rng(0)
    h, z, y = draw.normal(0, 0.3, (6, 8)), draw.normal(0, 1, (6, 4)), np.array([0, 1, 1, 2, 0, 2])
    total = 0.0
    for p in range(6):
        for q in range(6):
            if pairs == "all" or (y[p] == y[q]) == (pairs == "same"):
                total -= np.linalg.norm(h[p] - h[q]) * np.linalg.norm(z[p] - z[q])
    features = torch.from_numpy(h).requires_grad_()
    got = diversity(features, torch.from_numpy(y), torch.from_numpy(z), pairs)
    assert got.item() == pytest.approx(np.exp(total / 36), rel=1e-12)
    got.backward()
    assert features.grad.isfinite().all()


@pytest.mark.parametrize("reach", [None, 0.75])
def test_eq_8_steps_of_adam_go_on_from_round_to_round(reach):
    """Two rounds of two steps against float64 and torch's own unfused Adam, kept from one round to the next.

    The reach bounds the reward of some samples and not that of others.
    """
    server = run_server()
    # So much of diversity that it shows beside γ_fid.
    part = FedPA(gen_steps=2, gen_batch=6, gen_lr=1e-3, gamma_div=300.0, gamma_ad=2.0, ad_reach=reach)
    part.setup(server)
    state = server.state["fedpa"]
    draw = np.random.default_rng(0)
    counts = np.array([[5, 0, 1, 0, 2], [1, 0, 3, 0, 4]])
    each = [
        {"head": draw.normal(0, 0.3, (5, 64)), "bias": draw.normal(0, 0.3, 5), "counts": c.astype(np.float32)}
        for c in counts
    ]
    each = [(k, {name: torch.from_numpy(v).float() for name, v in e.items()}) for k, e in enumerate(each)]
    sums = {
        "features": torch.from_numpy(draw.normal(0, 9, (5, 64))).float(),
        "counts": torch.tensor(counts).sum(0).float(),
    }
    prototypes = sums["features"].double() / sums["counts"].clamp(min=1)[:, None]
    held, limits, beyond = (0, 2, 3, 4), torch.full((5,), torch.inf, dtype=torch.float64), []
    for c in held if reach else ():
        limits[c] = reach * min((prototypes[c] - prototypes[other]).norm() for other in held if other != c)

    seed = int(stream(3, "server/fedpa/init", server.t).integers(2**63))
    expected = build_generator(32, 5, 64, seed).double().train()
    reference = torch.optim.Adam(expected.parameters(), lr=1e-3)
    reported = []
    for t in (2, 3):
        server.t = t
        part.update(server, Uploads(dict(sums), each))
        draws = stream(3, "server/fedpa/noise", t)
        labels = draws.choice(5, 12, p=counts.sum(0) / counts.sum())
        noise = torch.from_numpy(draws.standard_normal((12, 32), dtype=np.float32)).double()
        for y, z in zip(torch.from_numpy(labels).split(6), noise.split(6), strict=True):
            h = expected(z, y)
            fid = torch.zeros((), dtype=torch.float64)
            for (_, e), c in zip(each, counts, strict=True):
                ce = F.cross_entropy(h @ e["head"].double().T + e["bias"].double(), y, reduction="none")
                fid = fid + (torch.from_numpy(c / counts.sum(0).clip(1))[y] * ce).sum() / (6 * 2)
            apart = (h - prototypes[y]).norm(dim=1)
            beyond.append(apart > limits[y])
            ad = torch.where(beyond[-1], limits[y], apart).mean()
            exponent = 0.0
            for p in range(6):
                for q in range(6):
                    if p != q and y[p] == y[q]:
                        exponent = exponent - (h[p] - h[q]).norm() * (z[p] - z[q]).norm()
            div = torch.as_tensor(exponent / 36, dtype=torch.float64).exp()
            reference.zero_grad()
            (25 * 0.98 ** (t - 1) * fid + 300 * div - 2.0 * ad).backward()
            reference.step()
            reported.append([fid.item(), div.item(), ad.item()])
    assert {bool(each) for each in torch.cat(beyond)} == ({False, True} if reach else {False})
    assert state["adam"]["step"].item() == 4
    model = FlatModel(build_generator(32, 5, 64, seed=0), CPU)
    for name, p in expected.named_parameters():
        if name != "layers.0.bias":  # batch-norm takes it out again: its gradient is rounding
            np.testing.assert_allclose(model.view(state["generator"], name), p.detach(), atol=2e-5, err_msg=name)
    for name, b in expected.named_buffers():
        if b.is_floating_point():
            got = model.view(state["generator"], name)
            np.testing.assert_allclose(got, b, atol=2e-3 if "mean" in name else 1e-4, err_msg=name)
    means = np.mean(reported[2:], 0)
    for name, value in zip(("fid", "div", "ad"), means, strict=True):
        assert server.metrics[f"generator.{name}"] == pytest.approx(value, rel=1e-3)


def test_the_distance_to_the_nearest_other_prototype():
    prototypes = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0], [0.0, 12.0]])
    known = torch.tensor([True, True, False, True])
    found = nearest_prototype(prototype_distance, prototypes, known)
    assert found[[0, 1]].tolist() == [5.0, 5.0]  # not 1: the prototype there stands for nothing
    assert found[3].item() == pytest.approx((9 + 64) ** 0.5)
    assert nearest_prototype(prototype_distance, prototypes, torch.tensor([True, False, False, False]))[0] == torch.inf


def test_the_adversarial_reward_ends_at_its_reach():
    """With nothing else in its loss, the generator leaves the prototypes; bounded, it stays within reach of them."""
    ended = {}
    for reach in (None, 0.5):
        server = run_server(**{"fedpa.gamma_fid": 0, "fedpa.gamma_div": 0, "fedpa.gen_lr": 0.05, "fedpa.gen_steps": 60,
                               "fedpa.ad_reach": reach})  # fmt: skip
        state = server.state["fedpa"]
        part = server.config.parts[0]
        features, labels = part.sample_features(server)
        apart = prototype_distance(features, labels, state["prototypes"], state["known"])
        limits = nearest_prototype(prototype_distance, state["prototypes"], state["known"])
        ended[reach] = (apart / limits[labels])[state["known"][labels]].mean().item()
    assert ended[None] > 5 * ended[0.5]


def test_the_optimiser_continues_from_a_state_that_was_stored():
    finals = []
    for stored in (False, True):
        runner = InProcess()
        simulate(runner=runner, **QUICK)
        server = runner.server
        if stored:
            server.state = to_device(to_host(server.state), CPU)
        uploads = Uploads(
            {"counts": torch.ones(5), "features": torch.randn(5, 64, generator=torch.Generator().manual_seed(0))}, []
        )
        replace(server.config.parts[0], gamma_fid=0).update(server, uploads)
        finals.append(to_host(server.state["fedpa"]))
    assert np.array_equal(finals[0]["generator"], finals[1]["generator"])
    assert finals[1]["adam"]["step"] == 20
    assert finals[1]["adam"]["exp_avg"].any()


def test_labels_follow_the_counts():
    counts = torch.tensor([6.0, 0.0, 3.0, 1.0])
    noise, labels = draw_inputs(np.random.default_rng(0), counts, 20000, 8)
    np.testing.assert_allclose(labels.bincount(minlength=4) / 20000, counts / 10, atol=0.015)
    assert labels.bincount(minlength=4)[1] == 0
    assert noise.mean().abs() < 0.02
    assert noise.std().item() == pytest.approx(1, abs=0.02)


def test_distances_of_pairs_within_and_between_classes_by_hand():
    features = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    intra, inter = class_distances(features, torch.tensor([1, 1, 0]))
    assert intra.item() == 5
    assert inter.item() == pytest.approx((1 + np.sqrt(18)) / 2)
    assert [d.item() for d in class_distances(features[:1], torch.tensor([2]))] == [0, 0]


def test_the_generator_learns_what_the_heads_say_and_classes_part():
    server, draw = run_server(), torch.Generator().manual_seed(0)
    part = FedPA(gen_steps=100, gen_lr=3e-3)
    part.setup(server)
    held = torch.tensor([[5.0, 0, 1, 3, 0], [1, 4, 3, 0, 2]])
    each = [{"head": torch.randn(5, 64, generator=draw), "bias": torch.zeros(5), "counts": c} for c in held]
    sums = {"features": torch.randn(5, 64, generator=draw), "counts": held.sum(0)}
    metrics = []
    for _ in range(3):
        part.update(server, Uploads(sums, list(enumerate(each))))
        metrics.append(server.metrics)
        server.metrics = {}
    assert metrics[-1]["generator.fid"] < 0.2 * metrics[0]["generator.fid"]
    assert metrics[-1]["generator.ad"] > metrics[0]["generator.ad"]
    assert metrics[-1]["generator.inter"] > 1.2 * metrics[-1]["generator.intra"]


# -- the client -------------------------------------------------------------------------------------------------------


def test_eqs_11_and_12_one_step_of_local_training():
    """Plain SGD on CE + λ_ge·CE(d(G(z, y')), y') + λ_po·L_po, of a client that has a class without prototype."""
    sent = make_broadcast()
    client = make_client(broadcast=sent, t=3, local_steps=1, momentum=0, lr=0.01, batch_size=16)
    start = client.model.weights.clone()
    order = stream(3, "batches", 3, 7).permutation(30)[:16]
    terms = train(client)

    module = build("mlp", (1, 8, 8), 5, seed=3).double()
    x, y = client.x[order].double(), client.y[order]
    draws = stream(3, "fedpa/noise", 3, 7)
    labels = draws.choice(5, 16 * 16, p=[0.4, 0, 0.3, 0.2, 0.1])[:16]
    noise = draws.standard_normal((16 * 16, 32), dtype=np.float32)[:16]
    generator = FlatModel(build_generator(32, 5, 64, seed=0), CPU)
    generator.load(sent["generator"])
    h = torch.from_numpy(made_in_evaluation_mode(generator.module, noise, labels))
    ge = F.cross_entropy(module.head(h), torch.from_numpy(labels))
    features = module.features(x)
    po = sum((features[j] - sent["prototypes"][y[j]].double()).norm() for j in range(16) if y[j] != 3) / 16
    assert (y == 3).any()
    added = 25 * 0.98**2 * ge + 5 * 0.98**2 * po
    gradients = torch.autograd.grad(F.cross_entropy(module.head(features), y) + added, list(module.parameters()))
    for (name, p), g in zip(module.named_parameters(), gradients, strict=True):
        np.testing.assert_allclose(client.model.view(client.model.weights, name), (p - 0.01 * g).detach(), atol=1e-5)
    assert terms["fedpa"] == pytest.approx(added.item(), rel=1e-5)
    assert not torch.equal(client.model.weights, start)


def test_the_generator_is_frozen_at_the_client():
    sent = make_broadcast()
    before = {k: v.clone() for k, v in sent.items()}
    client = make_client(broadcast=sent, local_steps=20, batch_size=4)  # more than one block of features
    part = client.config.parts[0]
    part.begin(client)
    made, labels = next(client.scratch["fedpa"]["made"])
    assert not made.requires_grad
    assert (len(made), len(labels)) == (4, 4)
    train(client)
    assert all(torch.equal(sent[k], before[k]) for k in sent)


def test_a_term_without_weight_is_not_computed():
    client = make_client(broadcast=make_broadcast())
    features = torch.randn(30, 64)
    step = Step(client.x, client.y, client.x, client.y, features, client.model.module.head(features), torch.tensor(0.0))

    def term(**settings):
        part = FedPA(**settings)
        part.begin(client)
        return part.loss(client, step)

    assert term(lambda_ge=0, lambda_po=0) is None
    both, ge, po = term(), term(lambda_po=0), term(lambda_ge=0)
    assert both.item() == pytest.approx((ge + po).item(), rel=1e-6)
    assert FedPA(lambda_ge=0, lambda_po=0).end(client) is None
    assert FedPA(lambda_ge=0).end(client).each == {}
    assert FedPA(lambda_po=0, gamma_ad=0).end(client).sum.keys() == {"counts"}
    assert FedPA(lambda_po=0, gamma_fid=0).end(client).each == {}


def test_schedules():
    part = FedPA()
    assert [part.at("lambda_ge", t) for t in (1, 2, 3)] == pytest.approx([25, 24.5, 24.01])
    assert part.at("gamma_fid", 11) == pytest.approx(25 * 0.98**10)
    assert [part.at("lambda_po", t) for t in (1, 2, 173, 174, 200)] == pytest.approx(
        [5, 4.9, 5 * 0.98**172, 0.1517, 0.15], abs=5e-5
    )
    assert part.at("lambda_po", 175) == 0.15  # 5·0.98^174 = 0.1487
    assert (part.gamma_div, part.gamma_ad) == (1, 0.15)
    assert FedPA(lambda_po=0).at("lambda_po", 5) == 0  # off, whatever the floor
    assert FedPA(lambda_ge_floor=1e-4, decay=0.1).at("lambda_ge", 9) == 1e-4


# -- whole runs -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result():
    return simulate(**QUICK)


def test_the_number_of_workers_and_torchs_generator_change_nothing(result):
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert comparable(simulate(runner=InProcess(3), **QUICK)) == comparable(result)
    assert torch.equal(torch.get_rng_state(), before)
    assert simulate(**QUICK, seed=4).server_state_sha256 != result.server_state_sha256


def test_the_first_round_is_fedavgs(result):
    assert simulate(**QUICK | {"rounds": 1}).model_sha256 == simulate(rounds=1).model_sha256
    assert [sorted(line["terms"]) for line in result.history] == [[], ["fedpa"], ["fedpa"]]
    assert result.model_sha256 != simulate().model_sha256


def test_prototypes_alone_need_no_generator_and_a_generator_alone_no_prototypes():
    runner = InProcess()
    history = simulate(runner=runner, **QUICK | {"fedpa.lambda_ge": 0}).history
    assert runner.server.state["fedpa"].keys() == {"counts", "prototypes", "known"}
    assert not any(key.startswith("generator") for line in history for key in line)
    simulate(runner=runner, **QUICK | {"fedpa.lambda_po": 0, "fedpa.gamma_ad": 0})
    assert runner.server.state["fedpa"].keys() == {"generator", "adam", "counts"}
    assert runner.server.broadcast(4)[0]["fedpa"].keys() == {"generator", "counts"}


def test_a_class_nobody_holds():
    dataset, runner = blobs(), InProcess()
    keep = dataset.train.y != 2
    split = type(dataset.train)(dataset.train.x[keep], dataset.train.y[keep])
    result = simulate(replace(dataset, train=split), runner, **QUICK)
    state = runner.server.state["fedpa"]
    assert not state["known"][2]
    assert state["counts"][2] == 0
    assert not state["prototypes"][2].any()
    assert np.isfinite(result.history[-1]["loss"])


def test_beside_hfmds():
    hfmds = {"hfmds.layer": "features", "hfmds.first": 2, "hfmds.steps": 3, "hfmds.per_client": 8, "rounds": 3}
    alone = simulate(method="hfmds", **hfmds)
    assert comparable(simulate(method="hfmds+fedpa", **hfmds, **OFF)) == comparable(alone)
    both = simulate(**QUICK | {"method": "hfmds+fedpa"} | hfmds)
    assert both.history[-1]["terms"].keys() == {"hfmds", "fedpa"}
    assert np.isfinite(both.history[-1]["loss"])
    assert both.model_sha256 != alone.model_sha256
