"""FedPA as its authors' code has it: what departs from the paper, each against NumPy or float64 written out here."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from raysim.engine.in_process import InProcess
from raysim.methods.base import Uploads
from raysim.methods.fedpa_reference import FedPAReference, collapsed_fidelity, mean_diversity, squared_distance
from raysim.models import build
from raysim.models.flat import FlatModel
from raysim.models.generator import build_generator
from raysim.rng import stream
from raysim.training.client import Client, train
from tests.methods.test_fedpa import made_in_evaluation_mode, make_broadcast
from tests.simulate import comparable, configure, simulate

NAME = "fedpa_reference"
QUICK = {"method": NAME, f"{NAME}.gen_steps": 5}
DRAW = np.random.default_rng(0)
H, Y = DRAW.normal(0, 1, (6, 8)), np.array([0, 1, 1, 2, 0, 2])


def tensors(*arrays):
    return [torch.from_numpy(a) for a in arrays]


def test_distances_are_squared_and_averaged_over_dimensions_too():
    prototypes = DRAW.normal(0, 1, (3, 8))
    errors = [((H[j] - prototypes[Y[j]]) ** 2).mean() for j in range(6)]
    got = squared_distance(*tensors(H, Y, prototypes), torch.tensor([True] * 3)).mean()
    assert got.item() == pytest.approx(sum(errors) / 6, rel=1e-12)
    without = squared_distance(*tensors(H, Y, prototypes), torch.tensor([True, False, True])).mean()
    assert without.item() == pytest.approx((sum(errors) - errors[1] - errors[2]) / 6, rel=1e-12)


def test_fidelity_is_summed_over_clients_with_its_weights_collapsed():
    heads, biases, shares = DRAW.normal(0, 1, (4, 3, 8)), DRAW.normal(0, 1, (4, 3)), DRAW.uniform(0, 1, (4, 3))
    total = 0.0
    for k in range(4):
        logits = H @ heads[k].T + biases[k]
        ces = np.log(np.exp(logits).sum(1)) - logits[np.arange(6), Y]
        total += ces.mean() * np.mean([shares[k, y] for y in Y])
    assert collapsed_fidelity(*tensors(H, Y, heads, biases, shares)).item() == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("pairs", ["same", "different", "all"])
def test_diversity_is_of_mean_absolute_and_mean_squared_differences(pairs):
    noise = DRAW.uniform(0, 1, (6, 4))
    total = 0.0
    for p in range(6):
        for q in range(6):
            if pairs == "all" or (Y[p] == Y[q]) == (pairs == "same"):
                total += np.abs(H[p] - H[q]).mean() * ((noise[p] - noise[q]) ** 2).mean()
    got = mean_diversity(*tensors(H, Y, noise), pairs)
    assert got.item() == pytest.approx(np.exp(-total / 36), rel=1e-12)


def test_noise_and_labels_are_uniform():
    counts = torch.tensor([90.0, 0.0, 5.0, 5.0])
    noise, labels = FedPAReference().draw(np.random.default_rng(0), counts, 20000)
    np.testing.assert_allclose(labels.bincount(minlength=4) / 20000, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.015)
    assert (noise.min() >= 0) & (noise.max() < 1)
    assert noise.mean().item() == pytest.approx(0.5, abs=0.01)


def test_local_steps_with_uniform_noise_and_labels_and_squared_distances():
    """Plain SGD over more steps than a client generates features for at once, against float64 written out here.

    One class has no prototype, and one no label count: of it nothing is generated.
    """
    sent, steps, size = make_broadcast(), 18, 4
    flat = FlatModel(build("mlp", (1, 8, 8), 5, seed=3).eval(), torch.device("cpu"))
    x, y = torch.randn(24, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 3] * 8)
    config = configure(**QUICK, local_steps=steps, batch_size=size, lr=0.002, momentum=0)
    client = Client(7, 3, config, 5, flat, flat.weights.clone(), x, y, {NAME: sent}, {NAME: {}})
    terms = train(client)

    module, draws = build("mlp", (1, 8, 8), 5, seed=3).double(), stream(3, f"{NAME}/noise", 3, 7)
    generator = FlatModel(build_generator(32, 5, 64, seed=0), torch.device("cpu"))
    generator.load(sent["generator"])
    labels, noise = [], []
    for _ in range(2):  # blocks of 16 steps
        labels.append(draws.choice(5, 16 * size, p=[1 / 4, 0, 1 / 4, 1 / 4, 1 / 4]))
        noise.append(draws.random((16 * size, 32), dtype=np.float32))
    labels, noise = np.concatenate(labels), np.concatenate(noise)
    made = torch.from_numpy(made_in_evaluation_mode(generator.module, noise, labels))
    epochs = stream(3, "batches", 3, 7)
    order = np.concatenate([epochs.permutation(24) for _ in range(3)])
    ge_weight, po_weight, reported = 25 * 0.98**2, 5 * 0.98**2, []
    for step in range(steps):
        at = slice(step * size, (step + 1) * size)
        rows = order[at]
        ge = F.cross_entropy(module.head(made[at]), torch.from_numpy(labels[at]))
        features = module.features(x[rows].double())
        po = 0.0
        for feature, label in zip(features, y[rows], strict=True):
            if label != 3:
                po = po + ((feature - sent["prototypes"][label].double()) ** 2).mean() / size
        added = ge_weight * ge + po_weight * po
        loss = F.cross_entropy(module.head(features), y[rows]) + added
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        with torch.no_grad():
            for p, g in zip(module.parameters(), gradients, strict=True):
                p -= 0.002 * g
        reported.append(added.item())
    for name, p in module.named_parameters():
        np.testing.assert_allclose(client.model.view(client.model.weights, name), p.detach(), atol=1e-5, err_msg=name)
    assert terms[NAME] == pytest.approx(np.mean(reported), rel=1e-5)


def test_counts_add_up_over_the_rounds_and_a_class_that_nobody_has_keeps_its_prototype():
    server = type("Server", (), {"state": {NAME: {}}, "t": 1})()
    part, means = FedPAReference(lambda_ge=0), DRAW.normal(0, 1, (2, 3, 8))
    for mean, counts in zip(means, ([2, 0, 5], [0, 0, 3]), strict=True):
        counts = torch.tensor(counts).float()
        part.update(
            server, Uploads({"features": counts[:, None] * torch.from_numpy(mean).float(), "counts": counts}, [])
        )
    state = server.state[NAME]
    assert state["counts"].tolist() == [2, 0, 8]
    assert state["known"].tolist() == [True, False, True]
    np.testing.assert_allclose(state["prototypes"], [means[0, 0], np.zeros(8), means[1, 2]], atol=1e-6)


def test_prototypes_are_means_over_the_local_steps_times_all_labels_and_counts_start_at_one():
    """Class 4 is owned once but in none of the three batches: its feature is 0, and counts."""
    flat = FlatModel(build("mlp", (1, 8, 8), 5, seed=3).eval(), torch.device("cpu"))
    x, y = torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 3] * 10)
    draws = stream(3, "batches", 1, 7)
    first, second = draws.permutation(20), draws.permutation(20)  # 20 = 8 + 8 + 4 dropped: the third is a new epoch's
    batches = (first[:8], first[8:16], second[:8])
    (unused, *_) = set(range(20)) - {int(row) for rows in batches for row in rows}
    y[unused] = 4
    config = configure(**QUICK, local_steps=3, batch_size=8, lr=0.1, momentum=0, drop_last=True)
    client = Client(7, 1, config, 5, flat, flat.weights.clone(), x, y, {NAME: {}}, {NAME: {}})
    train(client)
    upload = config.parts[0].end(client)

    module = build("mlp", (1, 8, 8), 5, seed=3).double()
    sums, seen, owned = np.zeros((5, 64)), np.zeros(5), np.bincount(y, minlength=5)
    for rows in batches:
        features = module.features(x[rows].double())
        for j, row in enumerate(rows):
            sums[y[row]] += features[j].detach().numpy()
            seen[y[row]] += 1
        gradients = torch.autograd.grad(F.cross_entropy(module.head(features), y[rows]), list(module.parameters()))
        with torch.no_grad():
            for p, g in zip(module.parameters(), gradients, strict=True):
                p -= 0.1 * g
    assert (owned[4], seen[4]) == (1, 0)
    np.testing.assert_allclose(upload.sum["features"], owned[:, None] * sums / seen.clip(1)[:, None], atol=1e-4)
    assert upload.sum["counts"].tolist() == owned.tolist()
    assert upload.each["counts"].tolist() == (seen + 1).tolist()
    np.testing.assert_allclose(upload.each["head"], module.head.weight.detach(), atol=1e-5)


@pytest.mark.parametrize("fuse", [1, 3])
def test_a_client_averages_no_features_where_no_term_needs_prototypes(fuse, monkeypatch):
    """FedGen needs the counts alone; its uploads and the trained heads are as ever."""
    widths, ends = set(), FedPAReference.end

    def end(part, client):
        widths.add((part.aligns, client.scratch[NAME]["sums"].shape[1]))
        upload = ends(part, client)
        seen = np.bincount(torch.cat([client.y[rows] for rows in client.batches()]), minlength=5)
        assert upload.each["counts"].tolist() == (1 + seen).tolist()
        return upload

    monkeypatch.setattr(FedPAReference, "end", end)
    for method in ("fedgen_reference", NAME):
        simulate(method=method, fuse=fuse, rounds=1, **{f"{NAME}.gen_steps": 1})
    assert widths == {(False, 0), (True, 64)}


def test_the_generator_is_trained_with_the_last_rounds_prototypes_and_decays():
    """Two rounds of one step against float64 and torch's own unfused Adam."""
    runner = InProcess()
    simulate(runner=runner, **QUICK, rounds=1)
    server = runner.server
    part = FedPAReference(gen_steps=1, gen_batch=6, gen_lr=1e-3)
    server.t = 0
    part.setup(server)
    server.state[NAME].pop("counts", None)
    draw = np.random.default_rng(1)
    held = np.array([[5, 1, 1, 1, 2], [1, 1, 3, 1, 4]], dtype=np.float64)
    heads = [(draw.normal(0, 0.3, (5, 64)), draw.normal(0, 0.3, 5)) for _ in held]
    each = [
        (k, {n: torch.from_numpy(v).float() for n, v in (("head", w), ("bias", b), ("counts", c))})
        for k, ((w, b), c) in enumerate(zip(heads, held, strict=True))
    ]
    seen = held.sum(0) - len(held)
    features = [draw.normal(0, 3, (5, 64)) for _ in range(2)]

    seed = int(stream(3, f"server/{NAME}/init", 0).integers(2**63))
    expected = build_generator(32, 5, 64, seed).double().train()
    reference = torch.optim.Adam(expected.parameters(), lr=1e-3, weight_decay=1e-2)
    for t in (1, 2):
        server.t = t
        sums = {"features": torch.from_numpy(features[t - 1]).float(), "counts": torch.from_numpy(seen).float()}
        part.update(server, Uploads(sums, each))
        assert ("generator.ad" in server.metrics) == (t == 2)
        draws = stream(3, f"server/{NAME}/noise", t)
        y = torch.from_numpy(draws.choice(5, 6, p=(seen > 0) / (seen > 0).sum()))
        z = torch.from_numpy(draws.random((6, 32), dtype=np.float32)).double()
        h = expected(z, y)
        loss = torch.zeros((), dtype=torch.float64)
        for (w, b), c in zip(heads, held, strict=True):
            ce = F.cross_entropy(h @ torch.from_numpy(w).T + torch.from_numpy(b), y)
            loss = loss + 25 * 0.98 ** (t - 1) * ce * np.mean((c / held.sum(0))[y])
        pairs = [(p, q) for p in range(6) for q in range(6) if y[p] != y[q]]
        apart = [(h[p] - h[q]).abs().mean() * (z[p] - z[q]).square().mean() for p, q in pairs]
        loss = loss + (-sum(apart) / 36).exp()
        if t == 2:
            known = torch.from_numpy(features[0] / seen.clip(1)[:, None])
            loss = loss - 0.15 * sum((h[j] - known[y[j]]).square().mean() for j in range(6)) / 6
        reference.zero_grad()
        loss.backward()
        reference.step()
        for group in reference.param_groups:
            group["lr"] *= 0.98
    model = FlatModel(build_generator(32, 5, 64, seed=0), torch.device("cpu"))
    for name, p in expected.named_parameters():
        if name != "layers.0.bias":  # batch-norm takes it out again: its gradient is rounding
            np.testing.assert_allclose(
                model.view(server.state[NAME]["generator"], name), p.detach(), atol=2e-5, err_msg=name
            )


def test_schedules_have_a_floor():
    part = FedPAReference()
    assert [part.at(weight, 2000) for weight in ("lambda_ge", "gamma_fid", "lambda_po")] == [1e-4, 1e-4, 0.15]


def test_fedgen_is_this_without_prototypes():
    """λ_ge 10·0.98^t, a constant fidelity of 1, all pairs, nothing about prototypes."""
    (part,) = configure(method="fedgen_reference").parts
    assert [part.at("lambda_ge", t) for t in (1, 3, 5000)] == pytest.approx([10, 10 * 0.98**2, 1e-4])
    assert [part.at("gamma_fid", t) for t in (1, 2, 500)] == [1, 1, 1]
    assert (part.lambda_po, part.gamma_ad, part.pairs, part.aligns) == (0, 0, "all", False)
    assert part.gen_weight_decay == 1e-2
    line = simulate(method="fedgen_reference", rounds=2, **{f"{NAME}.gen_steps": 5}).history[-1]
    assert ("generator.fid" in line, "generator.div" in line, "generator.ad" in line) == (True, True, False)


def test_a_narrower_generator_is_made_and_sent():
    runner = InProcess()
    simulate(runner=runner, **QUICK, rounds=1, **{f"{NAME}.hidden": 16, f"{NAME}.noise": 3})
    parameters = (3 + 5) * 16 + 16 + 2 * 16 + 16 * 64 + 64
    statistics = 2 * 16
    assert runner.server.state[NAME]["generator"].numel() == parameters + statistics


def test_the_number_of_workers_changes_nothing():
    settings = QUICK | {"method": f"{NAME}+fedbn", "model": "fedpa-cnn", "evaluation": "clients"}
    assert comparable(simulate(runner=InProcess(3), **settings)) == comparable(simulate(**settings))
