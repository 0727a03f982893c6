"""--fuse auto: small steps are fused, by configuration and images alone, and what cannot be is trained one by one."""

from dataclasses import replace

import pytest
import torch

from raysim import models
from raysim.config import RunConfig
from raysim.config.fusing import operations, settled
from raysim.methods.base import Part
from raysim.models.classifiers import all_models
from raysim.training.profiling import FlopCounter

GREY = (1, 28, 28)
SMALL = RunConfig(model="small-cnn", clients=100, active=100)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 84, 84)], ids=str)
@pytest.mark.parametrize("name", [name for name, model in all_models().items() if model.operations])
def test_operations_are_those_torch_counts(name, shape):
    if min(shape[1:]) < all_models()[name].smallest:
        pytest.skip("too small for it")
    module = models.build(name, shape, 10, seed=0)
    with torch.no_grad(), FlopCounter() as counter:
        module.features(torch.zeros(1, *shape))
    assert operations(name, shape, 10) == counter.total


def test_large_steps_are_not_fused():
    assert settled(RunConfig(model="hfmds-cnn"), (3, 32, 32), 10) == (RunConfig(model="hfmds-cnn", fuse=1), None)
    assert settled(RunConfig(model="resnet18"), (3, 32, 32), 10)[0].fuse == 1
    assert settled(replace(SMALL, batch_size=500), GREY, 10)[0].fuse == 1


@pytest.mark.parametrize(
    ("active", "fuse"), [(4, 1), (5, 2), (10, 3), (20, 5), (80, 20), (81, 11), (100, 13), (1000, 20)]
)
def test_small_steps_are_fused_in_groups_that_actors_can_share(active, fuse):
    config, note = settled(replace(SMALL, clients=1000, active=active), GREY, 10)
    assert config.fuse == fuse
    assert (note is None) == (fuse == 1)


def test_a_number_stays():
    assert settled(replace(SMALL, fuse=3), GREY, 10) == (replace(SMALL, fuse=3), None)


class Alone(Part):
    def loss(self, client, step):
        return step.ce


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"parts": (Alone(),)}, "the loss of test_fusing is written for one client at a time"),
        ({"compile": "yes"}, "--compile"),
        ({"actor_per_client": True}, "--actor-per-client"),
        ({"on_client_error": "skip"}, "would take its group along"),
        ({"model": f"{__name__}:WithDropout"}, "draws at random"),
    ],
)
def test_what_cannot_be_fused_says_so(change, reason):
    config, note = settled(replace(SMALL, **change), GREY, 10)
    assert config.fuse == 1
    assert note.startswith("--fuse auto: clients train one by one: ")
    assert reason in note
    assert "\n" not in note


class WithDropout(torch.nn.Sequential):
    """A small model of the user's own."""

    def __init__(self, shape, classes):
        channels, height, width = shape
        super().__init__(torch.nn.Flatten(), torch.nn.Dropout(), torch.nn.Linear(channels * height * width, classes))
