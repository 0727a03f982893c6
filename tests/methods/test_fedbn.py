"""FedBN: batch-norm stays with its client, and the clients' own models are what is evaluated."""

import numpy as np
import pytest
import torch

from raysim.data.federated_writer import deal_test
from raysim.engine.in_process import InProcess
from raysim.errors import InputError
from raysim.models import build
from raysim.models.flat import FlatModel
from tests.data.dealing import partition
from tests.simulate import SMALL, blobs, comparable, configure, simulate, simulate_on_ray

SETTINGS = {"method": "fedbn", "model": "fedpa-cnn", "evaluation": "clients", "active": 10, "rounds": 2}
NORMS = ("extractor.1.", "extractor.4.")


def test_the_server_keeps_its_batch_norm_and_the_clients_differ():
    runner = InProcess()
    models = []
    for method in ("fedbn", "fedavg"):
        (model,) = simulate(runner=runner, **SETTINGS | {"method": method}).models
        models.append(model)
    start = {k: v.numpy() for k, v in build("fedpa-cnn", (1, 8, 8), 5, seed=3).state_dict().items()}
    for name in start:
        if name.endswith("num_batches_tracked"):
            continue
        kept = np.array_equal(models[0][name], start[name])
        assert kept == name.startswith(NORMS), name
        assert not np.array_equal(models[1][name], start[name]), name


def batch_norm_after_one_round(worker, k: int) -> dict[str, np.ndarray]:
    """What client k keeps: its first round, done again."""
    hosted = worker.hosted
    hosted.weights = [FlatModel(build("fedpa-cnn", (1, 8, 8), 5, seed=3).eval(), hosted.device).weights]
    worker.clients._train_alone(k, [], {})
    return {n: v for n, v in hosted.model.export(hosted.model.weights).items() if n.startswith(NORMS)}


def test_clients_are_evaluated_with_their_own_batch_norm_on_their_share():
    """After one round every client's model is the average with its own batch-norm."""
    dataset, runner = blobs(), InProcess()
    result = simulate(dataset, runner, **SETTINGS | {"rounds": 1})
    dealt = partition(dataset.train.y, 5, kind="dirichlet", clients=10, seed=3, beta=SMALL["beta"])
    order, offsets = deal_test(dataset.test.y, dealt.counts(dataset.train.y, 5) > 0)
    x = dataset.train.x.astype(np.float64)
    correct = 0
    for k in range(10):
        own = batch_norm_after_one_round(runner.workers[0], k)
        module = build("fedpa-cnn", (1, 8, 8), 5, seed=3).eval()
        module.load_state_dict({n: torch.from_numpy(v) for n, v in (result.models[0] | own).items()})
        rows = order[offsets[k] : offsets[k + 1]]
        pixels = torch.from_numpy((dataset.test.x[rows] - x.mean()) / x.std()).float()
        correct += int((module(pixels).argmax(1).numpy() == dataset.test.y[rows]).sum())
    assert result.history[0]["accuracy"] == correct / offsets[-1]


@pytest.mark.usefixtures("local_ray")
def test_one_hash_on_actors():
    """Client states and the evaluation that needs them, whichever actor has the client."""
    settings = SETTINGS | {"active": 6, "rounds": 3}
    assert comparable(simulate_on_ray(actors=3, **settings)) == comparable(simulate(**settings))


@pytest.mark.parametrize(("keep", "layers"), [("all", ("weight", "bias", "running_")), ("statistics", ("running_",))])
def test_what_stays_at_the_clients_is_not_sent(keep, layers):
    model = build("fedpa-cnn", (1, 8, 8), 5, seed=3).state_dict()
    stays = {name for name in model if name.startswith(NORMS) and name.split(".")[2].startswith(layers)}
    sent = 4 * sum(v.numel() for name, v in model.items() if v.is_floating_point() and name not in stays)
    for line in simulate(**SETTINGS, **{"fedbn.keep": keep}).history:
        assert line["bytes_up"] == line["bytes_down"] == 10 * sent


def test_only_the_statistics_may_stay_at_the_clients():
    """Weight and bias are averaged then; the running mean and variance of the server stay as they were."""
    (kept,) = simulate(**SETTINGS, **{"fedbn.keep": "statistics"}).models
    start = {k: v.numpy() for k, v in build("fedpa-cnn", (1, 8, 8), 5, seed=3).state_dict().items()}
    for name, value in start.items():
        if not name.endswith("num_batches_tracked"):
            assert np.array_equal(kept[name], value) == ("running_" in name), name


def test_it_asks_for_the_clients_evaluation():
    with pytest.raises(InputError, match="fedbn keeps what it predicts with at the clients; add --evaluation clients"):
        configure(method="fedbn")
