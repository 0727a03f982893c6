"""`load` and `catalogue`: names, paths, sizes, and that torch stays out of it."""

import subprocess
import sys

import pytest

from raysim.data import catalogue, load
from raysim.data.loaders import named

from .made import encoded, one_line_error, pixels, write_folder, write_idx_set, write_parquet


def test_the_catalogue_has_every_name_on_one_line():
    lines = dict(catalogue())
    assert list(lines) == ["shapes", *named.DATASETS, "hf:NAME"]
    assert not any("\n" in line for line in lines.values())
    assert "60,000" in lines["mnist"]
    assert "--download" in lines["mnist"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [("cifar", "cifar10"), ("CIFAR-10", "cifar10"), ("FashionMNIST", "fashion_mnist"), ("shape", "shapes")],
)
def test_an_unknown_name_suggests_the_nearest(name, meant):
    with one_line_error(repr(name), f"did you mean '{meant}'?", "path"):
        load(name)


def test_a_name_like_no_other():
    with one_line_error("'xyz'", "there are shapes, mnist"):
        load("xyz")


def test_paths(tmp_path, monkeypatch):
    write_folder(tmp_path / "mine", {"a": 6, "b": 6})
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "./mine", "mine/", str(tmp_path / "mine")):
        assert load(name).name == "mine"
    monkeypatch.chdir(tmp_path / "mine")
    assert load("mine", data=tmp_path).name == "mine"
    assert load(".").name == "mine"
    with one_line_error("no/such", "no such folder"):
        load("no/such")
    with one_line_error("a/000.png", "a file", "give the folder"):
        load("a/000.png")


@pytest.mark.parametrize(
    ("options", "mentions"),
    [
        ({"train_size": 10, "fraction": 0.5}, ["--train-size", "--fraction", "one of them"]),
        ({"fraction": 0}, ["--fraction 0"]),
        ({"fraction": 1.5}, ["--fraction 1.5"]),
        ({"train_size": 0}, ["--train-size 0"]),
        ({"test_size": -1}, ["--test-size -1"]),
        ({"image_size": 0}, ["--image-size 0"]),
        ({"image_size": 5000}, ["--image-size 5000", "4096"]),
    ],
)
def test_sizes_that_make_no_sense(options, mentions):
    with one_line_error(*mentions):
        load("shapes", **options)


def test_parts_of_a_dataset(tmp_path):
    write_idx_set(tmp_path / "MNIST/raw")
    half = load("mnist", data=tmp_path, fraction=0.5, test_size=10)
    assert sorted(half.train.y.tolist()) == sorted(half.test.y.tolist()) == [*range(10)]
    assert len(load("mnist", data=tmp_path, fraction=0.001).train.y) == 1
    assert len(load("mnist", data=tmp_path, fraction=1).train.y) == 20
    with one_line_error("--train-size 21", "only 20"):
        load("mnist", data=tmp_path, train_size=21)
    with one_line_error("--test-size 21", "only 20"):
        load("mnist", data=tmp_path, test_size=21)


def test_torch_is_not_imported(tmp_path):
    """The driver stays small: only torchvision's own layouts of CIFAR, SVHN and CelebA need torch."""
    write_idx_set(tmp_path / "MNIST/raw")
    write_folder(tmp_path / "folder", {"a": 6, "b": 6})
    write_parquet(tmp_path / "cifar10/train.parquet", [encoded(x) for x in pixels(12)], [0, 1] * 6)
    script = f"""
import sys
from raysim.data import load  # and no `if __name__ == "__main__"`
load("shapes", train_size=10, test_size=10)
load("mnist", data={str(tmp_path)!r})
load("cifar10", data={str(tmp_path)!r})
load({str(tmp_path / "folder")!r})
assert not {{"torch", "torchvision", "ray"}} & set(sys.modules)
"""
    (tmp_path / "script.py").write_text(script)
    environment = {"PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, tmp_path / "script.py"], check=True, timeout=60, env=environment)
