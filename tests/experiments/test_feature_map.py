"""What several runs shared in one map of features, by one model."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from raysim.cli import main
from raysim.data import load
from raysim.experiments.feature_map import distance_to_class_means, draw_map
from tests.data.made import write_folder

TINY = ["--train-size", "100", "--test-size", "60", "--clients", "5", "--in-process", "--privacy", "0"]
SYNTHESIS = ["--method", "hfmds", "--rounds", "2", "--hfmds.every", "1", "--hfmds.steps", "1", "--model", "mlp"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    """Two runs that differ in how far their targets are moved, and one that shares nothing."""
    base = tmp_path_factory.mktemp("map")
    for mu in ("0", "0.5"):
        words = ["--hfmds.mu", mu, "--measures", "0", "--out", str(base / f"mu-{mu}")]
        assert main(["run", *TINY, *SYNTHESIS, *words]) == 0
    assert main(["run", *TINY, "--rounds", "1", "--model", "mlp", "--out", str(base / "plain")]) == 0
    return [base / "mu-0", base / "mu-0.5", base / "plain"]


def test_distances_by_hand():
    real = np.array([[0.0, 0.0], [2.0, 0.0], [9.0, 9.0]]), np.array([1, 1, 4])
    others = np.array([[1.0, 3.0], [1.0, -4.0], [5.0, 5.0]]), np.array([1, 1, 7])  # nobody real is a 7
    assert distance_to_class_means(real, others) == pytest.approx((3 + 4) / 2)
    assert np.isnan(distance_to_class_means(real, (others[0], np.array([7, 7, 7]))))


def test_the_map_has_every_run_and_real_images_by_the_first_runs_model(runs, tmp_path, capsys):
    assert main(["features", *map(str, runs[:2]), "--count", "30", "--out", str(tmp_path / "map.png")]) == 0
    points = json.loads((tmp_path / "map.json").read_text())
    assert {kind: len(each["label"]) for kind, each in points.items()} == {
        "real": 30, "hfmds.mu 0": 30, "hfmds.mu 0.5": 30,
    }  # fmt: skip
    assert Image.open(tmp_path / "map.png").width > 600
    told = capsys.readouterr().out
    assert "hfmds.mu 0.5: " in told
    again = draw_map(runs[:2], tmp_path / "again.png", 30)
    assert json.loads((tmp_path / "again.json").read_text()) == points
    # The real images' own distance, by the weights that the run saved and the pixels of the test split.
    weights, facts = load_file(runs[0] / "model.safetensors"), json.loads((runs[0] / "config.json").read_text())
    test = load("shapes", train_size=100, test_size=60).test
    mean, std = (np.array(facts[key], np.float32).reshape(1, 3, 1, 1) for key in ("mean", "std"))
    x = ((test.x - mean) / std).reshape(60, -1)
    features = np.maximum(x @ weights["extractor.1.weight"].T + weights["extractor.1.bias"], 0)
    whole = draw_map(runs[:1], tmp_path / "whole.png", 60)
    assert whole["real"] == pytest.approx(distance_to_class_means((features, test.y), (features, test.y)), rel=1e-3)
    assert again["real"] > 0


def test_equal_runs_in_folders_of_one_name_are_both_drawn(runs, tmp_path):
    for copy in ("a/real", "b/real"):
        shutil.copytree(runs[0], tmp_path / copy)
    names = [str(tmp_path / copy) for copy in ("a/real", "b/real")]
    assert list(draw_map(names, tmp_path / "map.png", 20)) == ["real", *names]
    assert list(draw_map([names[0], runs[0]], tmp_path / "map.png", 20)) == ["real", names[0], str(runs[0])]


def test_the_real_images_are_those_the_run_was_tested_on(tmp_path):
    """Here all that a table leaves, where there is no test split."""
    write_folder(tmp_path / "images", {"a": 12, "b": 6}, channels=1)
    (tmp_path / "table.csv").write_text("4,1\n2,4\n")
    dealt = ["--dataset", str(tmp_path / "images"), "--partition", "table", "--table", str(tmp_path / "table.csv")]
    run = ["--clients", "2", "--in-process", "--privacy", "0", "--measures", "0", "--out", str(tmp_path / "run")]
    assert main(["run", *dealt, *SYNTHESIS, *run]) == 0
    draw_map([tmp_path / "run"], tmp_path / "map.png", 30)
    points = json.loads((tmp_path / "map.json").read_text())
    assert np.bincount(points["real"]["label"]).tolist() == [6, 1]


def test_what_cannot_be_drawn_is_named(runs, tmp_path, capsys):
    assert main(["features", str(runs[0]), str(runs[2]), "--out", str(tmp_path / "x.png")]) == 2
    assert "plain' has no synthetic.parquet: its method shared no images" in capsys.readouterr().err
    assert main(["features", str(runs[0]), "--count", "none", "--out", str(tmp_path / "x.png")]) == 2
    assert "--count must be a whole number above 0" in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()
