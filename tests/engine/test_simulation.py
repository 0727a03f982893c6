"""The round loop against an independent FedAvg in plain PyTorch, and the rules every run keeps."""

from itertools import count

import numpy as np
import pytest
import torch
from torch import nn

from raysim.engine import client_work
from raysim.engine.failures import ClientFailure
from raysim.engine.in_process import InProcess
from raysim.engine.round_metrics import RoundMetrics
from raysim.engine.simulation import Simulation
from raysim.observe.progress import round_line
from raysim.training.client import Client, train
from tests.data.dealing import partition
from tests.simulate import blobs, comparable, configure, federated, simulate


def initial_model() -> nn.Module:
    """hfmds-cnn's layers, written again; only the initial numbers are taken from raysim."""
    net = nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 5),
    )  # fmt: skip
    from raysim.models import build

    with torch.no_grad():
        for ours, theirs in zip(net.parameters(), build("hfmds-cnn", (1, 28, 28), 5, seed=3).parameters(), strict=True):
            ours.copy_(theirs)
    return net


def plain_fedavg(dataset, owners, batches, rounds, lr, momentum, weight_decay) -> dict[str, torch.Tensor]:
    """Federated averaging as one would write it in an afternoon: all clients, one epoch, weighted by samples."""
    x = torch.from_numpy(dataset.train.x).double()
    x = ((x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True, correction=0)).float()
    y = torch.from_numpy(dataset.train.y)
    server = initial_model()
    for t in range(1, rounds + 1):
        average, total = None, 0
        for k, mine in enumerate(owners):
            client = initial_model()
            client.load_state_dict(server.state_dict())
            optimizer = torch.optim.SGD(client.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)
            for batch in batches(t, k):
                optimizer.zero_grad()
                nn.functional.cross_entropy(client(x[mine[batch]]), y[mine[batch]]).backward()
                optimizer.step()
            weighted = [len(mine) * p.detach().double() for p in client.parameters()]
            average = weighted if average is None else [a + w for a, w in zip(average, weighted, strict=True)]
            total += len(mine)
        with torch.no_grad():
            for p, a in zip(server.parameters(), average, strict=True):
                p.copy_(a / total)
    return [p.detach().numpy() for p in server.parameters()]


def test_equals_plain_pytorch_fedavg():
    """3 rounds of 5 clients, unequal sizes; the batch order is the only thing taken from raysim."""
    from raysim.rng import stream

    dataset = blobs(train=230, test=50, shape=(1, 28, 28))
    settings = {
        "model": "hfmds-cnn", "clients": 5, "active": 5, "rounds": 3, "lr": 0.005, "momentum": 0.9,
        "weight_decay": 1e-3, "batch_size": 16,
    }  # fmt: skip
    result = simulate(dataset, **settings)
    dealt = partition(dataset.train.y, 5, kind="dirichlet", clients=5, seed=3, beta=0.5)
    owners = [dealt.indices(k) for k in range(5)]
    assert len({len(mine) for mine in owners}) > 1

    def batches(t, k):
        order = stream(3, "batches", t, k).permutation(len(owners[k]))
        return [order[i : i + 16] for i in range(0, len(order), 16)]

    expected = plain_fedavg(dataset, owners, batches, rounds=3, lr=0.005, momentum=0.9, weight_decay=1e-3)
    ours = [v for v in result.models[0].values() if np.issubdtype(v.dtype, np.floating)]
    for got, want in zip(ours, expected, strict=True):
        assert np.abs(got - want).max() <= 1e-5


def test_the_seed_decides():
    assert comparable(simulate(seed=3)) == comparable(simulate(seed=3))
    assert simulate(seed=3).model_sha256 != simulate(seed=4).model_sha256


def test_uniform_weighting_differs_from_weighting_by_samples():
    assert simulate(weighting="uniform").model_sha256 != simulate(weighting="samples").model_sha256


def test_evaluation_is_the_accuracy_of_the_saved_model_and_does_not_depend_on_the_batch():
    dataset = blobs(test=150)
    result = simulate(dataset, eval_batch=64)
    assert result.history[-1]["accuracy"] == simulate(dataset, eval_batch=7).history[-1]["accuracy"]
    weights = result.models[0]
    x = dataset.test.x.reshape(150, -1).astype(np.float64)
    train = dataset.train.x.astype(np.float64)
    hidden = (x - train.mean()) / train.std() @ weights["extractor.1.weight"].T + weights["extractor.1.bias"]
    logits = np.maximum(hidden, 0) @ weights["head.weight"].T + weights["head.bias"]
    assert result.history[-1]["accuracy"] == (logits.argmax(1) == dataset.test.y).mean()
    shifted = logits - logits.max(1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(150), dataset.test.y]
    assert result.history[-1]["loss"] == pytest.approx(losses.mean(), rel=1e-4)


def test_a_loss_that_is_not_finite_is_said_so():
    config, runner = configure(partition="iid"), InProcess()
    data = federated(config, blobs())
    runner.start(config, data)
    huge = [np.full(64 * 64 + 64 + 64 * 5 + 5, 1e30, dtype=np.float32)]
    simulation = Simulation(config, data, runner, 0)
    simulation.weights = huge
    metrics = RoundMetrics(1, train_loss=1.0)
    metrics.count_evaluation(*simulation.evaluate(1))
    assert metrics.loss is None
    assert 0 <= metrics.accuracy <= 1
    assert "loss not finite" in round_line(metrics, 3, 0)


def test_eval_every_skips_rounds_but_never_the_last():
    evaluated = [line["accuracy"] is not None for line in simulate(rounds=5, eval_every=2).history]
    assert evaluated == [False, True, False, True, True]
    evaluated = [line["accuracy"] is not None for line in simulate(rounds=3, eval_every=0).history]
    assert evaluated == [False, False, True]


def test_evaluating_more_often_changes_nothing_in_the_model():
    assert simulate(rounds=4, eval_every=1).model_sha256 == simulate(rounds=4, eval_every=0).model_sha256


def test_bytes_are_the_models():
    line = simulate(rounds=1).history[0]
    parameters = 64 * 64 + 64 + 64 * 5 + 5
    assert line["bytes_up"] == line["bytes_down"] == 6 * parameters * 4


@pytest.mark.parametrize("settings", [{"local_steps": 7}, {"local_epochs": 2}, {"optimizer": "adam", "lr": 1e-3}])
def test_local_work_is_what_was_asked(settings):
    assert simulate(**settings).model_sha256 != simulate().model_sha256


def test_batches_cover_each_epoch_once():
    from raysim.training.client import Client

    client = Client(2, 1, configure(batch_size=4, local_epochs=2), 5, None, None, None, torch.zeros(10), {}, {})
    batches = [b.tolist() for b in client.batches()]
    assert [len(b) for b in batches] == [4, 4, 2, 4, 4, 2]
    for epoch in (batches[:3], batches[3:]):
        assert sorted(i for batch in epoch for i in batch) == list(range(10))
    assert batches[:3] != batches[3:]
    steps = Client(2, 1, configure(batch_size=4, local_steps=5), 5, None, None, None, torch.zeros(10), {}, {})
    assert [b.tolist() for b in steps.batches()] == batches[:5]


def test_learning_rate_decay():
    config = configure(lr=0.8, lr_decay=0.5, lr_decay_every=10)
    assert [config.learning_rate(t) for t in (1, 10, 11, 21)] == [0.8, 0.8, 0.4, 0.2]


def test_cohorts_are_seeded_distinct_and_change_with_the_round():
    config = configure(clients=1000, active=50)
    first, again, second = config.cohort(1), config.cohort(1), config.cohort(2)
    assert first == again != second
    assert len(set(first)) == 50
    assert first == sorted(first)


@pytest.mark.parametrize(("samples", "sizes"), [(20, [8, 8, 8, 8]), (5, [5, 5, 5, 5]), (16, [8, 8, 8, 8])])
def test_drop_last_leaves_out_smaller_batches_unless_there_is_no_other(samples, sizes):
    config = configure(batch_size=8, local_steps=4, drop_last=True)
    client = Client(0, 1, config, 2, None, None, None, torch.zeros(samples), {}, {})
    batches = list(client.batches())
    assert [len(b) for b in batches] == sizes
    per_epoch = max(1, samples // 8)
    for epoch in range(0, 4, per_epoch):
        drawn = np.concatenate(batches[epoch : epoch + per_epoch]).tolist()
        assert len(set(drawn)) == len(drawn)


def test_operations_are_counted_once_after_the_last_round_and_outside_its_time(monkeypatch):
    """The typical client trains once more for it, with the state it had; nothing else of that is kept."""
    counting, trained = [], []
    original = Simulation.count_operations

    def noting(self, typical, metrics):
        counting.append((metrics.round, metrics.seconds, dict(typical.states)))
        return original(self, typical, metrics)

    monkeypatch.setattr(Simulation, "count_operations", noting)
    monkeypatch.setattr(client_work, "train", lambda client: trained.append((client.t, client.id)) or train(client))
    result = simulate(method="moon", rounds=3, active=10)
    ((last, seconds, states),) = counting
    (again,) = {each for each in trained if trained.count(each) > 1}
    assert (last, again[0], list(states)) == (3, 3, [again[1]])
    assert len(trained) == 3 * 10 + 1
    assert result.history[-1].seconds == seconds > 0  # taken before
    assert [bool(metrics.gflops) for metrics in result.history] == [False, False, True]
    monkeypatch.setattr(Simulation, "count_operations", lambda *ignored: None)
    without = simulate(method="moon", rounds=3, active=10)
    assert without.model_sha256 == result.model_sha256


def test_the_memory_that_actors_held_of_a_gpu_is_a_metric(monkeypatch):
    assert [line.gpu_bytes for line in simulate(rounds=2).history] == [None, None]
    held = count(5)
    monkeypatch.setattr(client_work, "peak_memory", lambda device: next(held))
    assert [line.gpu_bytes for line in simulate(rounds=2, active=6, fuse=1).history] == [10, 16]


def test_a_batch_of_one_with_batch_norm_names_the_way_out(monkeypatch):
    """What torch says of it is recognised."""
    monkeypatch.setattr(client_work, "train", lambda client: nn.BatchNorm1d(2).train()(torch.zeros(1, 2)))
    with pytest.raises(ClientFailure, match="a batch has one sample: --drop-last leaves out a last one"):
        simulate(rounds=1, on_client_error="stop")
