"""FedGAN and FedDPGAN: averaging the GANs by hand, what is shared, the local loss, and runs."""

import numpy as np
import pytest
import torch

from raysim.data.synthetic_tables import column, images_of, table_digest
from raysim.engine.in_process import InProcess
from raysim.errors import InputError
from raysim.methods.common.wgan import Gan
from raysim.methods.fedgan import FedGAN
from raysim.rng import stream
from tests.data.dealing import partition
from tests.simulate import blobs, comparable, configure, simulate


def quick(name="fedgan", **more):
    small = {"pool": 30, "gan_rounds": 2, "gan_steps": 5, "gan_batch": 8, "width": 4, "noise": 8} | more
    return {"method": name} | {f"{name}.{key}": value for key, value in small.items()}


def test_one_round_of_averaging_by_hand():
    """Two clients' GANs, trained here from the server's, weighted by samples, give the images that are shared."""
    dataset = blobs(train=60)
    more = {"clients": 2, "active": 2, "rounds": 1, "normalise": "half"}
    result = simulate(dataset, **quick(gan_rounds=1), **more)
    dealt = partition(dataset.train.y, 5, kind="dirichlet", clients=2, seed=3, beta=0.5)
    part = FedGAN(pool=30, gan_rounds=1, gan_steps=5, gan_batch=8, width=4, noise=8)
    seed = int(stream(3, "server/fedgan/init").integers(2**63))
    weights = 0
    for k in range(2):
        rows = dealt.indices(k)
        gan = Gan(part, (1, 8, 8), 5, torch.device("cpu"), seed=seed)
        x, y = torch.from_numpy(dataset.train.x[rows] / 127.5 - 1).float(), torch.eye(5)[dataset.train.y[rows]]
        gan.train(x, y, 5, stream(3, "fedgan/gan/0", 1, k), None)
        weights = weights + gan.generator.weights.double() * len(rows) / 60
    gan = Gan(part, (1, 8, 8), 5, torch.device("cpu"), seed=seed)
    gan.generator.load(weights.float())
    present = np.unique(dataset.train.y)
    labels = present[np.arange(30) % len(present)]
    made = gan.sample(torch.eye(5)[labels], stream(3, "server/fedgan/pool", 1))
    table = result.shared["fedgan"]
    assert np.array_equal(column(table, "label"), labels)
    assert set(column(table, "client")) == {-1}
    np.testing.assert_allclose(images_of(table), made, atol=1e-3)


def test_alpha_weighs_real_against_synthetic():
    result, average = simulate(**quick(alpha=1.0)), simulate()
    assert result.model_sha256 == average.model_sha256  # synthetic images are there, and count nothing
    line = simulate(**quick(alpha=0.25)).history[-1]
    assert line["terms"]["fedgan"] > 0


@pytest.mark.parametrize("name", ["fedgan", "feddpgan"])
def test_no_pool_is_fedavg(name):
    assert comparable(simulate(**quick(name, pool=0))) == comparable(simulate())


def test_the_number_of_workers_and_fusing():
    whole = simulate(**quick())
    assert comparable(simulate(runner=InProcess(3), **quick())) == comparable(whole)
    for name, weights in simulate(**quick(), fuse=3).models[0].items():
        np.testing.assert_allclose(weights, whole.models[0][name], atol=1e-4)


def test_private_critics_give_other_images_and_an_epsilon():
    more = {"rounds": 1, "clients": 3, "active": 3}
    private, plain = simulate(**quick("feddpgan", epsilon=6.0), **more), simulate(**quick(), **more)
    assert 5.5 < private.history[0]["feddpgan.epsilon"] <= 6
    assert table_digest(private.shared["feddpgan"]) != table_digest(plain.shared["fedgan"])
    assert "fedgan.epsilon" not in plain.history[0]


def test_feddpgan_without_an_epsilon_is_refused():
    with pytest.raises(InputError, match="that is fedgan"):
        configure(method="feddpgan", **{"feddpgan.epsilon": "none"})
