"""What every classifier promises, whatever its name."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from raysim import models
from raysim.errors import InputError

NAMES = [name for name, _ in models.names()]
FEATURES = {
    "hfmds-cnn": 512,
    "fedpa-cnn": 32,
    "fedpa-celeba-cnn": 32,
    "small-cnn": 32,
    "mlp": 64,
    "resnet18": 512,
    "resnet18-gn": 512,
    "feddpms-vae": 32,
    "feddpms-cifar-vae": 128,
}
NOT_FOR_CLASSES = ("decoder.", "log_variance.")  # what a VAE has besides, without part in its logits


def test_names_have_descriptions():
    assert sorted(NAMES) == sorted(FEATURES)
    assert all(description for _, description in models.names())


def test_names_and_check_import_no_torch():
    code = """
import sys
from raysim import models
models.names(), models.check("resnet18", (3, 32, 32), 10)
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


NEW = """
from raysim.models.classifiers.base import Model

def linear(shape, classes):
    from torch import nn
    from raysim.models.classifier import Classifier
    return Classifier(nn.Flatten(), shape[0] * shape[1] * shape[2], classes)

MODELS = {"linear": Model(linear, 1, "no hidden layer")}
"""
USE = """
import sys
from raysim import models
models.classifiers.__path__.append(sys.argv[1])
assert ("linear", "no hidden layer") in models.names() and "torch" not in sys.modules
assert models.build("linear", (1, 2, 3), 4, seed=0).head.weight.shape == (4, 6)
"""


def test_a_new_model_is_one_file(tmp_path):
    (tmp_path / "linear.py").write_text(NEW)
    subprocess.run([sys.executable, "-c", USE, str(tmp_path)], check=True, timeout=60)


def accepts(name, shape):
    try:
        models.check(name, shape, 2)
    except InputError:
        return False
    return True


SHAPES = [(3, 32, 32), (1, 28, 28), (2, 16, 23), (3, 84, 84)]


@pytest.mark.parametrize(("name", "shape"), [(n, s) for n in NAMES for s in SHAPES if accepts(n, s)], ids=str)
def test_forward_is_head_of_features(name, shape):
    model = models.build(name, shape, 7, seed=0).eval()
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features, logits = model.features(x), model(x)
        assert features.shape == (2, FEATURES[name]) == (2, model.feature_size)
        assert logits.shape == (2, 7)
        assert torch.equal(logits, model.head(features))


@pytest.mark.parametrize("name", NAMES)
def test_features_follow_from_the_maps_of_a_model_that_has_them(name):
    model = models.build(name, (1, 44, 44), 7, seed=0).eval()
    x = torch.randn(2, 1, 44, 44, generator=torch.Generator().manual_seed(0))
    assert model.has_maps is (name in models.with_maps())
    if not model.has_maps:
        with pytest.raises(ValueError, match="no convolution maps"):
            model.maps(x)
        return
    linear = next(layer for layer in model.modules() if isinstance(layer, nn.Linear))
    with torch.no_grad():
        assert model.maps(x).shape == (2, linear.in_features)
        assert torch.equal(model.features_of(model.maps(x)), model.features(x))


def test_the_papers_cnn_has_1600_maps():
    model = models.build("hfmds-cnn", (3, 32, 32), 10, seed=0)
    assert model.maps(torch.zeros(1, 3, 32, 32)).shape == (1, 1600)
    assert "mlp" not in models.with_maps()  # its first linear layer sees pixels


@pytest.mark.parametrize("name", NAMES)
def test_the_smallest_image_trains_and_a_smaller_one_is_refused(name):
    side = next(side for side in range(1, 85) if accepts(name, (1, side, side)))
    model = models.build(name, (1, side, side), 2, seed=0)
    model(torch.randn(2, 1, side, side)).sum().backward()
    used = [p for name, p in model.named_parameters() if not name.startswith(NOT_FOR_CLASSES)]
    assert all(p.grad is not None for p in used)
    if side > 1:
        with pytest.raises(InputError, match=f"{name} needs images of at least {side}×{side}, not {side - 1}×84"):
            models.check(name, (1, side - 1, 84), 2)


@pytest.mark.parametrize("name", NAMES)
def test_head_is_the_last_linear(name):
    model = models.build(name, (3, 44, 44), 10, seed=0)
    assert [m for m in model.modules() if isinstance(m, nn.Linear)][-1] is model.head
    assert model.head.out_features == 10
    assert list(model.state_dict())[-2:] == ["head.weight", "head.bias"]


@pytest.mark.parametrize("name", NAMES)
def test_seeded_and_leaves_torchs_generator_alone(name):
    before = torch.get_rng_state()
    first = models.build(name, (3, 44, 44), 10, seed=1).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)  # another state of the global generator, the same weights
    again = models.build(name, (3, 44, 44), 10, seed=1).state_dict()
    other = models.build(name, (3, 44, 44), 10, seed=2).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])
    assert all(value.device.type == "cpu" for value in first.values())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "message"),
    [
        ("hfmds_cnn", (3, 32, 32), 10, r"unknown model 'hfmds_cnn'; did you mean 'hfmds-cnn'\?"),
        ("resnet-18", (3, 32, 32), 10, r"did you mean 'resnet18'\?"),
        ("zzz", (3, 32, 32), 10, "choose one of hfmds-cnn, "),
        ("mlp", (32, 32), 10, r"image shape \(32, 32\); give \(channels, height, width\)"),
        ("mlp", (0, 32, 32), 10, "image shape"),
        ("mlp", (3, 32, 32), 1, "1 classes; a classifier needs at least 2"),
        ("small-cnn", (3, 32, 15), 10, "at least 16×16, not 32×15; use fedpa-cnn"),
    ],
)
def test_wrong_input_is_one_clear_line(name, shape, classes, message):
    for function in (models.check, lambda *arguments: models.build(*arguments, seed=0)):
        with pytest.raises(InputError, match=message) as caught:
            function(name, shape, classes)
        assert "\n" not in str(caught.value)
