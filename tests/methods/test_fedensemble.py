"""FedEnsemble: who trains what, and that the average softmax of the right models predicts."""

import numpy as np
import pytest
import torch

from raysim.data.federated_writer import deal_test
from raysim.engine.in_process import InProcess
from raysim.errors import InputError
from raysim.models import build
from raysim.rng import stream
from tests.data.dealing import partition
from tests.simulate import blobs, comparable, configure, simulate

MODELS = {"method": "fedensemble", "fedensemble.mode": "models", "fedensemble.models": 3}


def probabilities(model, dataset):
    module = build("mlp", (1, 8, 8), 5, seed=0)
    module.load_state_dict({name: torch.from_numpy(value) for name, value in model.items()})
    pixels = dataset.train.x.astype(np.float64)
    logits = module.double()(torch.from_numpy((dataset.test.x - pixels.mean()) / pixels.std())).detach().numpy()
    e = np.exp(logits - logits.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def assert_predicted_by(models, result, dataset):
    mean = sum(probabilities(model, dataset) for model in models) / len(models)
    assert result.history[-1]["accuracy"] == (mean.argmax(1) == dataset.test.y).mean()
    loss = -np.log(mean[np.arange(len(mean)), dataset.test.y]).mean()
    assert result.history[-1]["loss"] == pytest.approx(loss, rel=1e-4)


def test_the_active_clients_models_predict_together():
    dataset = blobs()
    result, average = simulate(dataset, method="fedensemble"), simulate(dataset)
    assert len(result.models) == 1 + 6
    assert_predicted_by(result.models[1:], result, dataset)
    assert result.history[-1]["loss"] != average.history[-1]["loss"]


def test_in_this_mode_training_and_what_is_sent_are_fedavgs():
    result, average = simulate(method="fedensemble"), simulate()
    for name, value in average.models[0].items():
        assert np.array_equal(result.models[0][name], value)
    for ours, theirs in zip(result.history, average.history, strict=True):
        assert all(ours[key] == theirs[key] for key in ("train_loss", "bytes_up", "bytes_down"))


def test_the_models_that_predict_are_those_that_were_averaged():
    dataset = blobs()
    result = simulate(dataset, method="fedensemble", rounds=1, active=10)
    sizes = partition(dataset.train.y, 5, kind="dirichlet", clients=10, seed=3, beta=0.5).sizes
    for name, value in result.models[0].items():
        mean = sum(n * model[name].astype(np.float64) for n, model in zip(sizes, result.models[1:], strict=True))
        np.testing.assert_allclose(value, mean / sizes.sum(), atol=1e-6)


def test_m_models_predict_together_and_start_apart():
    dataset = blobs()
    result = simulate(dataset, **MODELS)
    assert len(result.models) == 3
    assert_predicted_by(result.models, result, dataset)
    runner = InProcess()
    simulate(runner=runner, **MODELS, rounds=1)
    part, server = runner.server.config.parts[0], runner.server
    server.weights = server.weights[:1]
    part.setup(server)
    assert len({weights.tobytes() for weights in server.weights}) == 3


def test_in_m_rounds_every_client_trains_every_model_and_every_round_shares_them_out():
    runner = InProcess()
    simulate(runner=runner, **MODELS, rounds=1)
    part, server = runner.server.config.parts[0], runner.server
    rounds = [part.route(server, t, list(range(10))) for t in range(1, 10)]
    for first in (0, 3, 6):
        for k in range(10):
            assert {route[k] for route in rounds[first : first + 3]} == {0, 1, 2}
    for route in rounds:
        assert sorted(np.bincount(list(route.values()), minlength=3)) == [3, 3, 4]
    assert len({tuple(route.values()) for route in rounds}) > 3  # a new order every M rounds
    assert part.route(server, 5, [2, 7]) == {k: rounds[4][k] for k in (2, 7)}


def test_a_model_nobody_trained_stays_as_it_was():
    runner = InProcess()
    result = simulate(runner=runner, **MODELS, rounds=1, active=1)
    part, server = runner.server.config.parts[0], runner.server
    (trained,) = part.route(server, 1, stream(3, "cohort", 1).choice(10, 1, replace=False).tolist()).values()
    server.t, server.weights = 0, [server.model.weights.numpy()]
    part.setup(server)  # as they started
    for i, weights in enumerate(server.weights):
        start = server.model.export(torch.from_numpy(weights))
        same = all(np.array_equal(result.models[i][name], value) for name, value in start.items())
        assert same == (i != trained)


def test_one_model_is_fedavg():
    one, average = simulate(**MODELS | {"fedensemble.models": 1}), simulate()
    assert one.model_sha256 == average.model_sha256
    assert [line["accuracy"] for line in one.history] == [line["accuracy"] for line in average.history]


@pytest.mark.parametrize("method", ["fedensemble+fedprox", "fedensemble+naivemix"])
def test_the_number_of_workers_changes_nothing(method):
    settings = MODELS | {"method": method}
    assert comparable(simulate(runner=InProcess(3), **settings)) == comparable(simulate(**settings))


def logits_of(model, name, images, dataset):
    module = build(name, (1, 8, 8), 5, seed=0).eval()
    module.load_state_dict({key: torch.from_numpy(value) for key, value in model.items()})
    pixels = dataset.train.x.astype(np.float64)
    return module.double()(torch.from_numpy((images - pixels.mean()) / pixels.std())).detach().numpy()


def test_logits_may_be_averaged_instead():
    dataset = blobs()
    result = simulate(dataset, method="fedensemble", **{"fedensemble.vote": "logits"})
    mean = np.mean([logits_of(model, "mlp", dataset.test.x, dataset) for model in result.models[1:]], axis=0)
    assert result.history[-1]["accuracy"] == (mean.argmax(1) == dataset.test.y).mean()
    losses = np.log(np.exp(mean).sum(1)) - mean[np.arange(len(mean)), dataset.test.y]
    assert result.history[-1]["loss"] == pytest.approx(losses.mean(), rel=1e-4)


def test_clients_with_their_own_batch_norm_predict_together_for_the_images_of_all():
    """As in FedPA's code: the test images of every client's classes, each predicted by all clients' models."""
    dataset = blobs()
    settings = {"method": "fedensemble+fedbn", "model": "fedpa-cnn", "evaluation": "clients", "active": 10, "rounds": 2}
    result = simulate(dataset, **settings)
    dealt = partition(dataset.train.y, 5, kind="dirichlet", clients=10, seed=3, beta=0.5)
    order, _ = deal_test(dataset.test.y, dealt.counts(dataset.train.y, 5) > 0)
    votes = [logits_of(model, "fedpa-cnn", dataset.test.x[order], dataset) for model in result.models[1:]]
    shares = [np.exp(v - v.max(1, keepdims=True)) for v in votes]
    mean = sum(e / e.sum(1, keepdims=True) for e in shares)
    assert len(votes) == 10
    assert not np.array_equal(votes[0], votes[1])
    assert result.history[-1]["accuracy"] == (mean.argmax(1) == dataset.test.y[order]).mean()


def test_what_it_cannot_go_with():
    with pytest.raises(InputError, match=r"several models, fedbn follows one .* --fedensemble.mode clients$"):
        configure(**MODELS | {"method": "fedensemble+fedbn", "evaluation": "clients"})
    with pytest.raises(InputError, match=r"several models, scaffold follows one .* --fedensemble.mode clients$"):
        configure(**MODELS | {"method": "fedensemble+scaffold"})
    assert configure(method="fedensemble+scaffold")
    with pytest.raises(InputError, match="both decide 'route'"):
        configure(method="fedensemble+tests.parts.committee")
