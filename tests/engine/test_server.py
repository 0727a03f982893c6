"""The server's own arithmetic: where the models start, how they are averaged, what is exported."""

import numpy as np
import torch

from raysim.engine.messages import Trained
from raysim.engine.server import Server
from raysim.models import build
from raysim.models.flat import FlatModel
from tests.simulate import blobs, configure, federated


def test_it_starts_from_the_initial_model_and_exports_it_by_name():
    config = configure()
    server = Server(config, federated(config, blobs()))
    module = build("mlp", (1, 8, 8), 5, seed=config.seed)
    (begun,) = server.begin()
    assert np.array_equal(begun, FlatModel(module, torch.device("cpu")).weights.numpy())
    (model,), state = server.export()
    assert state == {}
    assert model.keys() == module.state_dict().keys()
    assert all(np.array_equal(model[name], value.numpy()) for name, value in module.state_dict().items())


def test_the_average_is_exact_and_survives_a_snapshot():
    config = configure()
    server = Server(config, federated(config, blobs()))
    server.weights = [np.zeros(3, dtype="float32")]
    terms = [np.array([2**40, 2**41, 0, 1, 2**40]), np.array([0, 0, 2**40, 1, 2**40])]
    (mean,) = server.aggregate(1, {0: Trained(2, 2.0)}, 2, {"model/0": terms[0]}, {"model/0": terms[1]})
    assert mean.tolist() == [0.5, 1.0, 0.5]
    assert mean.dtype == "float32"
    (restored,) = server.restore(server.snapshot()[0], {})
    assert restored.tolist() == mean.tolist()
