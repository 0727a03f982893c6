"""Measures of shared images in whole runs: what is compared, what is recorded, and that they tell good from bad."""

import json

import numpy as np
import pytest
import torch

from raysim.cli import main
from raysim.data.synthetic_tables import images_of, make_table
from raysim.measures import IMAGE_MEASURES, TRAINING, distributions
from raysim.measures.shared_images import compare_images
from tests.simulate import SYNTHESIS, blobs, comparable, configure, federated, simulate, simulate_on_ray


def flat(images: np.ndarray) -> torch.Tensor:
    """Features that are the normalised pixels; of pixels they are made as `to_batch` would."""
    x = torch.as_tensor(images, dtype=torch.float32).flatten(1)
    return (x - 128) / 90 if images.dtype == np.uint8 else x


def compared(table, measures=100, **settings):
    config = configure(measures=measures, **settings)
    data = federated(config, blobs())
    figures = compare_images(config, data, {"mine": table}, list(range(config.clients)), 1, flat)
    return {figure.name: figure.value for figure in figures}, figures


def as_table(images: np.ndarray):
    count = len(images)
    return make_table(images, np.zeros(count, np.int64), np.zeros(count, np.int64), np.ones(count, np.int64))


def test_training_images_shared_as_they_are_are_as_good_as_training_images():
    copies, _ = compared(as_table((blobs().train.x[:150].astype(np.float32) - 128) / 90))
    noise, figures = compared(as_table(np.random.default_rng(0).normal(0, 1, (150, 1, 8, 8)).astype(np.float32)))
    assert list(copies) == [f"{name}.{key}" for name in ("mine", TRAINING) for key in IMAGE_MEASURES]
    assert copies["mine.fd"] == pytest.approx(copies["training.fd"], rel=0.3)
    assert noise["mine.fd"] > 1.5 * noise["training.fd"]
    assert noise["mine.kd"] > 3 * abs(noise["training.kd"])
    assert noise["mine.coverage"] < 0.5 < noise["training.coverage"]
    assert figures[0].note == "features of mlp: 100 shared images beside as many held-out ones"


def test_sets_are_of_one_size_and_few_images_are_not_measured():
    made = np.random.default_rng(0).normal(0, 1, (40, 1, 8, 8)).astype(np.float32)
    assert "40 shared" in compared(as_table(made))[1][0].note
    assert "30 shared" in compared(as_table(made), measures=30)[1][0].note
    values, figures = compared(as_table(made[:5]))
    assert values == {"mine.fd": None}
    assert figures[0].note == "too few samples (5 images)"
    made[3] = np.nan
    assert compared(as_table(made))[1][0].note.startswith("not measured: the model gives values that are not finite")


def test_a_run_measures_by_the_final_models_features():
    dataset = blobs()
    result = simulate(dataset, **SYNTHESIS, measures=200, privacy=0)
    values = {figure.name: figure.value for figure in result.measures}
    assert values.keys() == {f"{name}.{key}" for name in ("hfmds", TRAINING) for key in IMAGE_MEASURES}
    # All 200 test images are held out, and there are fewer shared ones: the sets have their number.
    shared = images_of(result.shared["hfmds"])
    weight, bias = (torch.from_numpy(result.models[0][f"extractor.1.{kind}"]) for kind in ("weight", "bias"))

    def features(x):
        return (torch.as_tensor(x).float().flatten(1) @ weight.T + bias).relu().double()

    count = len(shared)
    assert f"{count} shared images beside" in result.measures[0].note
    # With as many held-out images as there are, the sample is all of them, so the figure can be computed here.
    result = simulate(blobs(test=count), **SYNTHESIS, measures=10_000, privacy=0)
    values = {figure.name: figure.value for figure in result.measures}
    weight, bias = (torch.from_numpy(result.models[0][f"extractor.1.{kind}"]) for kind in ("weight", "bias"))
    train, test = blobs(test=count).train.x, blobs(test=count).test.x
    real, made = features((test - train.mean()) / train.std()), features(images_of(result.shared["hfmds"]).copy())
    assert values["hfmds.fd"] == pytest.approx(distributions.frechet_distance(real, made), rel=1e-3)
    assert values["hfmds.precision"] == pytest.approx(distributions.precision_recall(real, made)[0], abs=0.03)


@pytest.mark.usefixtures("local_ray")
def test_on_actors_the_same_and_the_result_does_not_depend_on_it():
    here, there = simulate(**SYNTHESIS), simulate_on_ray(actors=2, **SYNTHESIS)
    assert here.measures == there.measures
    assert len(here.measures) == 12
    without = simulate(**SYNTHESIS, measures=0)
    assert without.measures == []
    assert comparable(without) == comparable(here)


def test_they_are_recorded_and_in_the_report(tmp_path):
    words = ["--train-size", "100", "--test-size", "40", "--clients", "5", "--model", "small-cnn", "--in-process"]
    synthesis = ["--method", "hfmds", "--rounds", "2", "--hfmds.every", "1", "--hfmds.steps", "1", "--privacy", "0"]
    assert main(["run", *words, *synthesis, "--feature-kl", "20", "--out", str(tmp_path / "run")]) == 0
    figures = json.loads((tmp_path / "run" / "measures.json").read_text())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["measures"] == {figure["name"]: figure["value"] for figure in figures}
    assert summary["measures"]["hfmds.fd"] > 0
    page = (tmp_path / "run" / "report.html").read_text()
    for text in ("features of small-cnn", "shared by hfmds", "Fréchet distance", "FID would take Inception"):
        assert text in page
    assert "KL divergence of a class&#x27;s features between clients" in page
    plain = ["--rounds", "1", "--out", str(tmp_path / "plain")]
    assert main(["run", *words, *plain]) == 0
    assert not (tmp_path / "plain" / "measures.json").exists()
