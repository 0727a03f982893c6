"""Models of the user's own: adapted, checked, told apart by their source, trained like any other."""

import functools
import importlib
import os
import pickle
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim import models
from raysim.cli import main
from raysim.definitions import name_of, source_digest
from raysim.engine.in_process import InProcess
from raysim.errors import InputError
from raysim.models import own
from raysim.models.flat import FlatModel
from raysim.settings import Given
from raysim.storage.formats import read_summary
from tests.faults.harness import ROOT
from tests.simulate import blobs, comparable, simulate, simulate_on_ray

SHAPE, CLASSES = (3, 16, 16), 5
HERE = "tests.models.test_own"


class TinyViT(nn.Module):
    """A vision transformer on patches of 4×4; it has neither `features` nor `head`, and it drops out."""

    def __init__(self, shape, classes, width=16, dropout=0.1):
        super().__init__()
        channels, height, width_ = shape
        self.patches = nn.Conv2d(channels, width, 4, 4)
        self.place = nn.Parameter(0.02 * torch.randn(1, height // 4 * (width_ // 4), width))
        self.block = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.classify = nn.Linear(width, classes)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.place
        return self.classify(self.norm(self.block(tokens).mean(1)))


class WithInterface(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Linear(shape[0] * shape[1] * shape[2], 7)
        self.head = nn.Linear(7, classes)

    def features(self, x):
        return self.body(x.flatten(1)).relu()

    def forward(self, x):
        return self.head(self.features(x))


class Misleading(WithInterface):
    """Its forward pass is not that of its `features` and `head`."""

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.norm, self.last = nn.LayerNorm(7), nn.Linear(7, classes)

    def forward(self, x):
        return self.last(self.norm(self.features(x)))


def convolutional(shape, classes):
    """Layers that can be fused, and a model that is a function's."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(16, classes),
    )  # fmt: skip


class Mixing(nn.Module):
    """Known layers, but its code reads the clients' channels as one."""

    def __init__(self, shape, classes):
        super().__init__()
        self.conv, self.last = nn.Conv2d(shape[0], 4, 3), nn.Linear(4, classes)

    def forward(self, x):
        x = self.conv(x).mean((2, 3))
        return self.last(x - x.mean(1, keepdim=True))


# -- adapting ----------------------------------------------------------------------------------------------------------


def build(name, shape=SHAPE, classes=CLASSES, seed=1):
    models.check(name, shape, classes)
    return models.build(name, shape, classes, seed)


def given(definition) -> Given:
    return Given(name_of(definition), definition)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        (f"{HERE}:TinyViT", 16),
        (f"{HERE}:WithInterface", 7),
        (f"{HERE}:Misleading", 7),
        (f"{HERE}:convolutional", 16),
        ("torchvision:mobilenet_v3_small", 1024),
        ("torchvision:resnet18", 512),
    ],
)
def test_any_network_becomes_a_classifier(name, size):
    module = build(name).eval()
    x = torch.randn(3, *SHAPE)
    features = module.features(x)
    assert features.shape == (3, size) == (3, module.feature_size)
    assert isinstance(module.head, nn.Linear)
    assert torch.equal(module.head(features), module(x))
    torch.testing.assert_close(module(x), models.build_plain(name, SHAPE, CLASSES, 1).eval()(x))


def test_its_weights_depend_on_the_seed_alone():
    one, same, other = (
        FlatModel(build(f"{HERE}:TinyViT", seed=seed), torch.device("cpu")).weights for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_its_weights_are_saved_under_its_own_names():
    split = build(f"{HERE}:TinyViT")
    saved = FlatModel(split, torch.device("cpu")).export(torch.zeros(sum(p.numel() for p in split.parameters())))
    assert saved.keys() == TinyViT(SHAPE, CLASSES).state_dict().keys()


def test_grey_images_give_what_three_equal_colours_would():
    grey, colour = (build("torchvision:mobilenet_v3_small", (channels, 16, 16)).eval() for channels in (1, 3))
    x = torch.randn(2, 1, 16, 16)
    torch.testing.assert_close(grey(x), colour(x.expand(2, 3, 16, 16)))


@pytest.mark.skipif(not find_spec("timm"), reason="timm is not installed")
def test_a_model_of_timm():
    assert build("timm:mobilenetv3_small_050", (1, 32, 32)).feature_size == 1024


# -- what cannot be used, in one line ----------------------------------------------------------------------------------


class EndsInSoftmax(WithInterface):
    features = None

    def forward(self, x):
        return self.head(self.body(x.flatten(1)).relu()).softmax(1)


class Other(WithInterface):
    def forward(self, x):
        return self.body(x.flatten(1))


class Raises(nn.Module):
    def __init__(self, shape, classes):
        raise ValueError("no such width\nanywhere")


class Frozen(WithInterface):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.body.requires_grad_(False)


class Unseeded(WithInterface):
    drawn = 0.0

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        Unseeded.drawn += 1.0
        nn.init.constant_(self.body.bias, Unseeded.drawn)


class TwoAnswers(WithInterface):
    def forward(self, x):
        logits = self.head(self.features(x))
        return (logits, logits) if self.training else logits


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (EndsInSoftmax, "does not end in a linear layer"),
        (Other, "returns (2, 7) for 2 images; needed: (2, 5)"),
        (Raises, "ValueError: no such width anywhere"),
        (Frozen, "parameter body.weight is frozen"),
        (Unseeded, "built twice from one seed, body.bias differs"),
        (TwoAnswers, "returns tuple in training mode"),
        (nn.Linear(3, 2), "Linear is no class"),
        (lambda shape, classes: 3, "it gives int, not an nn.Module"),
        (lambda: None, "takes 0 positional arguments but 2 were given"),
        (dict, "dict() takes no keyword"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_wrong_is_said_in_one_line(model, message):
    if model is dict:
        message = "dict expected at most 1 argument, got 2"
    with pytest.raises(InputError, match=r"^--model [^\n]*$") as raised:
        build(given(model))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:Net", "No module named 'no_such_module'"),
        (f"{HERE}:Nothing", "has no attribute 'Nothing'"),
        ("my lab:Net", "write MODULE:NAME"),
        ("__main__:Net", "give the object in Python, model=…"),
        ("torchvision:resnet19", "did you mean 'resnet1"),
        (f"{HERE}:TinyViT.forward", "'tuple' object has no attribute 'patches'"),
    ],
)
def test_a_name_that_leads_nowhere(name, message):
    with pytest.raises(InputError, match=r"^--model[^\n]*$") as raised:
        build(name)
    assert message in str(raised.value)


def test_timm_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match="pip install timm"):
        build("timm:resnet18")


def test_the_command_line_says_it_too(capsys):
    code = main(["run", "--model", f"{HERE}:Raises", "--in-process", "--train-size", "60", "--test-size", "20"])
    assert code == 2
    assert capsys.readouterr().err.count("\n") == 1


# -- the source --------------------------------------------------------------------------------------------------------


def test_the_source_decides_the_digest():
    assert source_digest(TinyViT) == source_digest(TinyViT)
    assert len({source_digest(each) for each in (TinyViT, WithInterface, Misleading, convolutional, Mixing)}) == 5
    narrow, wide = (functools.partial(TinyViT, width=width) for width in (8, 16))
    assert source_digest(narrow) != source_digest(wide)


def digest_of(source: str) -> str:
    space = {"__name__": "__main__"}
    exec(source, space)
    return source_digest(space["net"])


LAB = {
    "__init__.py": "",
    "nets.py": "from . import parts\nfrom .sizes import WIDTH\n\ndef net(shape, classes):\n    return parts.part()\n",
    "parts.py": "def part():\n    import lab.late\n    return lab.late.DEPTH\n",
    "sizes.py": "WIDTH = 3\n",
    "late.py": "try:\n    import missing.part, lab.broken\nexcept Exception:\n    DEPTH = 3\n",
    "broken.py": "def\n",
    "other.py": "WIDTH = 3\n",
}


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A function that writes a package with a change, and returns the digest of its net."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def digest(file="other.py", old="", new=""):
        (tmp_path / "lab").mkdir(exist_ok=True)
        for name, content in LAB.items():
            (tmp_path / "lab" / name).write_text(content.replace(old, new) if name == file else content)
        for name in [name for name in sys.modules if name.partition(".")[0] == "lab"]:
            monkeypatch.delitem(sys.modules, name)
        importlib.invalidate_caches()
        return source_digest(importlib.import_module("lab.nets").net)

    return digest


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("nets.py", "shape, classes", "shape, count"), ("parts.py", "DEPTH", "DEPTH + 1"), ("sizes.py", "3", "4"),
        ("late.py", "3", "4"), ("__init__.py", "", "import torch\n"),
    ],
)  # fmt: skip
def test_an_edited_helper_counts(lab, file, old, new):
    assert lab() == lab() != lab(file, old, new)


def test_comments_layout_and_modules_that_are_not_imported_do_not_count(lab):
    whole = lab()
    assert lab("parts.py", "    return", "    # why\n    return") == whole
    assert lab("parts.py", "part():", "part( ) :\n") == whole
    assert lab("other.py", "3", "4") == whole


def test_a_module_that_is_imported_late_counts_the_same_once_it_is_there(lab):
    before = lab()
    net = sys.modules["lab.nets"].net
    assert net(SHAPE, CLASSES) == 3
    assert "lab.late" in sys.modules
    assert source_digest(net) == before


def around(width):
    def net(shape, classes):
        return width

    return net


def test_what_a_function_was_made_around_counts():
    assert source_digest(around(3)) == source_digest(around(3)) != source_digest(around(4))


@pytest.mark.parametrize("change", [("WIDTH = 3", "WIDTH = 4"), ("return WIDTH", "return -WIDTH"), ("'a'", "'c'")])
def test_what_a_definition_of_a_notebook_uses_counts(change):
    source = (
        "WIDTH = 3\n\ndef part():\n    return WIDTH\n\nclass net:\n    depth = 'a'\n    def __init__(self):\n"
        "        part()\n"
    )
    assert digest_of(source) == digest_of(source.replace("    return", "    # why\n    return"))
    assert digest_of(source) != digest_of(source.replace(*change))


def test_a_set_in_a_notebook_is_the_same_in_every_process():
    code = "from tests.models.test_own import digest_of\n"
    code += 'print(digest_of(\'def net(s): return s in {"a", "b", "c", "d"}\'))'
    environments = [os.environ | {"PYTHONHASHSEED": seed} for seed in "1234"]
    said = {subprocess.check_output([sys.executable, "-c", code], env=each, cwd=ROOT) for each in environments}
    assert len(said) == 1


def test_without_a_source_the_compiled_code_counts():
    same, again, other = (digest_of(f"def net(shape, classes):\n    return {n}\n") for n in (1, 1, 2))
    assert same == again != other


@pytest.mark.processes
def test_a_run_is_not_resumed_with_another_source(tmp_path, monkeypatch):
    settings = {"clients": 4, "rounds": 2, "train_size": 60, "test_size": 20, "privacy": 0, "in_process": True}
    one, other = type("Net", (WithInterface,), {}), type("Net", (Misleading,), {})
    run = raysim.run(**settings, model=one, progress=False, out=tmp_path / "run")
    assert run.model()(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(InputError, match=r"began with another --model .*: its source differs"):
        raysim.resume(tmp_path / "run", model=other, progress=False)
    with pytest.raises(InputError, match="had another source"):
        raysim.open_run(tmp_path / "run", model=other).model()
    assert raysim.resume(tmp_path / "run", model=one, progress=False).accuracy == run.accuracy


# -- training ----------------------------------------------------------------------------------------------------------

NOTEBOOK = "a model of a notebook"  # a class that no other process can import
METHODS = {
    "fedavg": {},
    "hfmds+fedpa": {"hfmds.every": 2, "hfmds.steps": 2, "hfmds.per_client": 3, "fedpa.gen_steps": 2},
    "scaffold": {},
}
SMALL = {"clients": 4, "active": 3, "rounds": 2, "batch_size": 8, "lr": 0.001}


def settings_for(model: str, method: str) -> dict:
    class Net(TinyViT):
        pass

    own_model = given(Net) if model is NOTEBOOK else model
    return SMALL | {"model": own_model, "method": method} | METHODS[method]


def few():
    return blobs(train=80, test=40, shape=SHAPE)


each_model = pytest.mark.parametrize("model", [f"{HERE}:TinyViT", "torchvision:mobilenet_v3_small", NOTEBOOK])
each_method = pytest.mark.parametrize("method", METHODS)


@each_model
@each_method
def test_it_trains_the_same_with_one_worker_and_with_two(model, method):
    one, two = (simulate(few(), InProcess(workers), **settings_for(model, method)) for workers in (1, 2))
    assert comparable(one) == comparable(two)
    assert one.history[-1]["train_loss"] is not None


@pytest.mark.parametrize(
    ("model", "method"),
    [
        (NOTEBOOK, "hfmds+fedpa"),
        *(
            pytest.param(model, method, marks=pytest.mark.slow)
            for model in (f"{HERE}:TinyViT", "torchvision:mobilenet_v3_small", NOTEBOOK)
            for method in METHODS
        ),
    ],
)
def test_it_trains_the_same_on_two_actors(model, method, local_ray):
    settings = settings_for(model, method)
    on_ray = simulate_on_ray(few(), **settings, actors=2)
    assert comparable(on_ray) == comparable(simulate(few(), **settings))


def test_it_learns():
    result = simulate(blobs(shape=SHAPE), model=f"{HERE}:TinyViT", rounds=8, lr=0.1, partition="iid", active=10)
    assert result.history[-1]["accuracy"] > 0.5  # of five classes


def test_dropout_depends_on_the_client_and_the_round_alone():
    torch.manual_seed(1)
    first = simulate(few(), **settings_for(f"{HERE}:TinyViT", "fedavg"))
    torch.manual_seed(2)
    again = simulate(few(), **settings_for(f"{HERE}:TinyViT", "fedavg"))
    assert first.model_sha256 == again.model_sha256


# -- fused -------------------------------------------------------------------------------------------------------------


def test_an_own_model_of_known_layers_is_fused():
    alone, fused = (
        simulate(few(), model=f"{HERE}:convolutional", rounds=2, clients=4, active=4, fuse=n) for n in (1, 4)
    )
    for name, weights in alone.models[0].items():
        np.testing.assert_allclose(weights, fused.models[0][name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (f"{HERE}:convolutional", None),
        (f"{HERE}:TinyViT", "made for one client only"),
        (f"{HERE}:Mixing", "cannot train several clients in one step"),
    ],
)
def test_what_cannot_be_fused_says_so(model, message, tmp_path, capsys):
    words = ["--train-size", "60", "--test-size", "20", "--clients", "4", "--rounds", "1", "--privacy", "0"]
    out = ["--out", str(tmp_path / "run"), "--in-process", "--fuse", "2"]
    assert main(["run", "--model", model, *words, *out]) == (2 if message else 0)
    error = capsys.readouterr().err
    assert message in error if message else read_summary(tmp_path / "run")
    assert error.count("\n") <= 1


def test_a_setting_that_is_an_object_is_pickled_with_it():
    again = pickle.loads(pickle.dumps(given(TinyViT)))  # noqa: S301 - as Ray does, between the processes of a run
    assert again == f"{HERE}:TinyViT"
    assert again.value is TinyViT
    assert own.maker(again, SHAPE, CLASSES)()


def test_what_a_module_draws_when_it_is_imported_does_not_shift_the_weights(tmp_path, monkeypatch):
    """An actor imports it when it builds the model, the driver has done so before: both must have the same."""
    (tmp_path / "drawing_net.py").write_text(
        "import torch\n\ntorch.randn(5)\n\n\ndef net(shape, classes):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(shape[0] * shape[1] * shape[2], classes))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for build in (models.build, models.build_plain):
        monkeypatch.delitem(sys.modules, "drawing_net", raising=False)
        first, again = (build("drawing_net:net", (1, 4, 4), 3, seed=0).state_dict() for _ in range(2))
        assert all(torch.equal(first[key], again[key]) for key in first)
