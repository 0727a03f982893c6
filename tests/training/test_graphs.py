"""Whole steps as CUDA graphs: what is refused, and what is put in place. That replays are right is in tests/gpu."""

import json

import pytest
import torch

from raysim import methods
from raysim.cli import main
from raysim.errors import InputError
from raysim.storage.formats import read_config
from raysim.training.graphs import Graphs, Places, form
from tests.methods.tiny import settings_of
from tests.simulate import configure, simulate

REFUSED = {"feddpms", "fedmix", "fixmatch", "moon", "sdafl"}


def test_every_method_is_replayed_or_refused_by_name():
    refused = {}
    for method in methods.names():
        try:
            configure(**settings_of(*method.split("+"), cuda_graphs=True))
        except InputError as error:
            refused[method] = str(error)
    assert refused.keys() == REFUSED
    assert refused["moon"].startswith("--cuda-graphs: moon ")
    assert all(text.startswith("--cuda-graphs: ") and text.endswith("; leave one out") for text in refused.values())


def test_an_own_method_has_to_say_that_it_can_be_replayed():
    """Each class that overrides a hook of the step, since it does not know what one derived from it does."""
    with pytest.raises(InputError, match="--cuda-graphs: everything "):
        configure(method="tests.parts.everything", cuda_graphs=True)
    with pytest.raises(InputError, match="--cuda-graphs: fedmix "):  # derived from naivemix, which says so
        configure(method="fedmix", cuda_graphs=True)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fuse": 4}, "--fuse: it has a step of its own, which --cuda-graphs does not know"),
        ({"compile": "yes"}, "--compile makes another"),
        ({"model": "torchvision:resnet18"}, "--model torchvision:resnet18 may draw"),
    ],
)
def test_what_does_not_go_with_graphs(settings, said):
    with pytest.raises(InputError, match=said):
        configure(cuda_graphs=True, **settings)


def test_without_a_gpu_it_is_an_error():
    with pytest.raises(InputError, match=r"^--cuda-graphs needs GPUs .*; leave it out$"):
        simulate(cuda_graphs=True)


def test_the_command_says_so_and_leaves_nothing_behind(tmp_path, capsys):
    tiny = ["--train-size", "50", "--test-size", "20", "--clients", "2", "--model", "small-cnn", "--in-process"]
    assert main(["run", *tiny, "--cuda-graphs", "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith("raysim: --cuda-graphs needs GPUs ")
    assert not (tmp_path / "run").exists()


def test_runs_that_replayed_the_forward_pass_alone_stay_readable(tmp_path):
    """Which was `--compile cuda-graphs` once."""
    (tmp_path / "config.json").write_text(json.dumps({"format": 1, "settings": {"compile": "cuda-graphs"}}))
    assert read_config(tmp_path)["settings"]["compile"] == "cuda-graphs"
    with pytest.raises(InputError, match="--compile must be one of no, yes"):
        configure(compile="cuda-graphs")


def test_places_stay_and_take_new_values():
    places = Places()
    kernel = torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    first = places.put({"a": kernel, "b": [torch.ones(2), 5], "c": iter(())}, "x")
    assert first["a"] is not kernel
    assert first["a"].stride() == kernel.stride()
    second = places.put({"a": kernel + 1, "b": [torch.zeros(2), 5], "c": None}, "x")
    assert second["a"] is first["a"]
    assert torch.equal(first["a"], kernel + 1)
    assert torch.equal(first["b"][0], torch.zeros(2))
    first["a"] += 1
    assert places.put(first["a"], "x", "a") is first["a"]  # what is there already stays as it is
    assert torch.equal(first["a"], kernel + 2)


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.ones(2, 4), "n": 1}, {"a": torch.ones(3, 2).T, "n": 1}, {"a": torch.ones(2, 3).double(), "n": 1},
        {"a": torch.ones(2, 3), "n": 2}, {"a": torch.ones(2, 3)}, {"a": torch.ones(2, 3), "n": "1"},
    ],
)  # fmt: skip
def test_what_a_replay_cannot_change_tells_steps_apart(other):
    one = {"a": torch.ones(2, 3), "n": 1}
    assert form(one) == form({"a": torch.zeros(2, 3), "n": 1})
    assert form(one) != form(other)


def test_graphs_are_for_cuda_alone():
    with pytest.raises(InputError, match="--cuda-graphs needs GPUs"):
        Graphs(type("Model", (), {"device": torch.device("cpu")}))
