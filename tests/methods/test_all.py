"""What every method must do: one hash whatever the actors, FedAvg's where its settings are neutral, and in pairs.

Methods are found by name, so a new one is in these tests; what it needs to be quick and what makes it neutral stands in
the tables here and in tiny.py.
"""

from itertools import combinations

import numpy as np
import pytest
import ray

from raysim import methods
from raysim.data import load
from raysim.engine.in_process import InProcess
from raysim.engine.ray_runner.actors import SERVER, WORKER, ClientActor, ServerActor
from raysim.engine.ray_runner.runner import RayRunner
from raysim.errors import InputError
from tests.methods.tiny import TINY, settings_of
from tests.simulate import comparable, configure, simulate

# Settings under which a method is FedAvg. Those that are not a part's FedAvg has too.
NEUTRAL = {
    "fedavg": {},
    "fedavgm": {"fedavgm.momentum": 0},
    "fedbn": {"evaluation": "clients"},  # the model has no batch-norm
    "feddpgan": {"feddpgan.pool": 0},
    "feddpms": {"model": "feddpms-vae", "rounds": 2, "feddpms.vae_weight": 0, "feddpms.quota": 0},
    "fedensemble": {"fedensemble.mode": "models", "fedensemble.models": 1},
    "fedgan": {"fedgan.pool": 0},
    "fedgen": {"fedgen.lambda_ge": 0},
    "fedgen_reference": {"fedpa_reference.lambda_ge": 0},
    "fedhkd": {"fedhkd.lambda_q": 0, "fedhkd.gamma_h": 0},
    "fedhkd_reference": {"fedhkd_reference.lambda_q": 0, "fedhkd_reference.gamma_h": 0},
    "fedmix": {"fedmix.ratio": 0},
    "fedpa": {"fedpa.lambda_ge": 0, "fedpa.lambda_po": 0},
    "fedpa_reference": {"fedpa_reference.lambda_ge": 0, "fedpa_reference.lambda_po": 0},
    "fedprox": {"fedprox.mu": 0},
    "fixmatch": {"labelled": 12, "unlabelled_batch": 8, "fixmatch.lambda_u": 0},
    "fmds": {"hfmds.first": 100},
    "hfmds": {"hfmds.first": 100},
    "mixup": {"labelled": 12, "unlabelled_batch": 8, "mixup.beta": 0},
    "moon": {"moon.mu": 0},
    "naivemix": {"naivemix.ratio": 0},
    "scaffold": {"rounds": 1},  # no setting turns it off, but the first round has nothing to correct
    "sdafl": {"sdafl.pool": 0},
}

# Methods that no setting makes FedAvg: the server's step is another one.
NEVER_FEDAVG = {"fedadagrad", "fedadam", "feddyn", "fedyogi"}

# What a method does by other settings in another way.
VARIANTS = [("fedensemble", {"fedensemble.mode": "models", "fedensemble.models": 2})]

# Pairs that make no sense, and why they say so.
KINDS, GANS = "are kinds of one method; use one of them", "both train GANs; use one of them"
MIXED = "both mix batches; use one of them|fedmix expands the whole loss of real batches"
REFUSED = {
    ("feddpgan", "fedgan"): KINDS,
    ("feddpgan", "fedmix"): MIXED,
    ("feddpgan", "sdafl"): GANS,
    ("feddpms", "fedensemble"): "fedensemble has several models, feddpms one",
    ("fedbn", "hfmds"): "hfmds makes images by the global model, whose batch-norm fedbn leaves as it was",
    ("fedgan", "fedmix"): MIXED,
    ("fedgan", "sdafl"): GANS,
    ("fedmix", "fixmatch"): MIXED,
    ("fedmix", "mixup"): MIXED,
    ("fedmix", "sdafl"): MIXED,
    ("mixup", "naivemix"): MIXED,
    ("mixup", "sdafl"): MIXED,
    ("fedgen", "fedpa"): KINDS,
    ("fedgen", "fedpa_reference"): KINDS,
    ("fedhkd", "fedhkd_reference"): KINDS,
    ("fedmix", "hfmds"): MIXED,
    ("fedmix", "naivemix"): KINDS,
    ("fedpa", "fedpa_reference"): KINDS,
}
SERVER_STEPS = ("fedadagrad", "fedadam", "fedavgm", "feddyn", "fedyogi")
REFUSED |= dict.fromkeys(combinations(SERVER_STEPS, 2), "both decide 'aggregate'; use one of them")

PARTS = [name for name in methods.names() if name != "fedavg" and name not in methods.ALIASES]
PAIRS = list(combinations(PARTS, 2))


@pytest.fixture(scope="module")
def shapes():
    return load("shapes", train_size=120, test_size=50)


class Nothing:
    """What actors that stand by host."""

    def __init__(self, config, data, use_gpu):
        pass


class Standing:
    """A placement whose actors stay for the next run: starting a process that imports torch takes longer than a run."""

    def __init__(self, actors: int):
        empty = (f"{Nothing.__module__}:{Nothing.__name__}", None, None)
        self.server = ServerActor.options(num_gpus=0).remote(*empty, "server")
        self.actors = [ClientActor.options(num_gpus=0).remote(*empty, f"actor-{i}", None) for i in range(actors)]

    def using(self, count: int) -> "Standing":
        self.slot = dict.fromkeys(range(count), 0)
        return self

    def node_of(self, actor: int) -> str:
        return "the only one"

    def start_server(self, config, data):
        return self._host(self.server, SERVER, config, data, "server")

    def start_client_actor(self, actor: int, config, data):
        return self._host(self.actors[actor], WORKER, config, data, f"actor-{actor}", None)

    def _host(self, actor, kind, config, data, *names):
        """A new Worker or Server, as in an actor just started."""

        def anew(host, config, data):
            host.__init__(kind, config, data, *names)

        ray.get(actor.__ray_call__.remote(anew, config, data))
        return actor

    def changes(self):
        return {}, {}

    def reserve(self) -> None:
        pass


class StandingRunner(RayRunner):
    def __init__(self, placement: Standing, config):
        super().__init__(None, config)
        self.placement = self.clients.placement = placement

    def stop(self) -> None:
        pass


@pytest.fixture(scope="module")
def standing(local_ray):
    return Standing(4)


SLOW = {"feddpgan"}  # takes 40 s
ALONE = [pytest.param(n, {}, marks=pytest.mark.slow if n in SLOW else (), id=f"{n}-{{}}") for n in methods.names()]


@pytest.mark.parametrize(("method", "variant"), [*ALONE, *VARIANTS], ids=str)
def test_one_hash_in_process_and_with_1_2_and_4_actors(method, variant, shapes, standing):
    settings = settings_of(method, **variant)
    config = configure(**settings)
    expected = comparable(simulate(shapes, **settings))
    for actors in (1, 2, 4):
        runner = StandingRunner(standing.using(actors), config)
        assert comparable(simulate(shapes, runner=runner, **settings)) == expected, f"{actors} actors"


@pytest.mark.parametrize("method", [name for name in methods.names() if name not in NEVER_FEDAVG])
def test_neutral_settings_give_fedavgs_hash(method, shapes):
    """The model's hash, the server's state, and every round's figures but for operations that are done for later."""
    neutral = NEUTRAL[method]
    common = {key: value for key, value in neutral.items() if "." not in key}
    average, same = simulate(shapes, **TINY | common), simulate(shapes, **settings_of(method) | neutral)
    if method in ("fedavgm", "fedensemble", "scaffold"):  # it has a state; rounds otherwise; sends for later rounds
        assert same.model_sha256 == average.model_sha256
    else:
        for metrics in (*same.history, *average.history):
            metrics.gflops = {}
        assert comparable(same)[:3] == comparable(average)[:3]
    if neutral and not common:
        assert simulate(shapes, **settings_of(method)).model_sha256 != average.model_sha256


@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_a_pair_goes_together_or_is_refused_in_one_line(pair, shapes):
    """Also the other way round."""
    if pair in REFUSED:
        for names in (pair, pair[::-1]):
            with pytest.raises(InputError, match=REFUSED[pair]) as caught:
                configure(**settings_of(*names))
            assert "\n" not in str(caught.value)
        return
    line = simulate(shapes, **settings_of(*pair, rounds=1)).history[-1]
    assert np.isfinite(line["loss"])
    configure(**settings_of(*pair[::-1]))


@pytest.mark.slow
@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair not in REFUSED], ids="+".join)
def test_a_pair_has_one_hash_and_every_part_does_its_work(pair, shapes):
    """Three rounds, on one worker and on three; and without either part it is another run."""
    settings = settings_of(*pair, rounds=3)
    both = comparable(simulate(shapes, **settings))
    assert comparable(simulate(shapes, runner=InProcess(3), **settings)) == both
    common = {key: value for key, value in settings.items() if "." not in key and key != "method"}
    for name in pair:
        alone = simulate(shapes, **settings_of(name) | common)
        assert name == "fedbn" or comparable(alone) != both  # the model has no batch-norm
