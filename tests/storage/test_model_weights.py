"""--start-from: a run begins with the weights that another one ended with."""

import os
import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as torch_save

import raysim
from raysim.cli import main
from raysim.errors import InputError

TINY = {"model": "mlp", "clients": 6, "active": 3, "train_size": 120, "test_size": 40, "privacy": 0, "progress": False}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "run"
    return raysim.run(**TINY, rounds=3, in_process=True, out=out)


def weights_of(path):
    return load_file(path / "model.safetensors")


def test_a_run_that_learns_nothing_ends_where_it_started(trained, tmp_path):
    """With another seed, so that its own random weights would be others."""
    still = raysim.run(
        **TINY, rounds=1, seed=9, lr=1e-30, in_process=True, out=tmp_path / "still", start_from=trained.path
    )
    for name, value in weights_of(trained.path).items():
        np.testing.assert_allclose(weights_of(still.path)[name], value, rtol=0, atol=1e-6)


def test_a_file_and_a_run_are_the_same_with_ray_and_without(trained, tmp_path, local_ray):
    by_run = raysim.run(**TINY, rounds=2, in_process=True, out=tmp_path / "run", start_from=trained.path)
    file = trained.path / "model.safetensors"
    by_file = raysim.run(**TINY, rounds=2, actors=2, out=tmp_path / "file", start_from=file)
    assert by_run.summary["model_sha256"] == by_file.summary["model_sha256"]
    assert by_run.summary["model_sha256"] != trained.summary["model_sha256"]


def test_with_batch_norm_its_statistics_come_along(tmp_path):
    settings = TINY | {"model": "fedpa-cnn", "image_size": 16, "in_process": True, "batch_size": 20, "fuse": 1}
    first = raysim.run(**settings, rounds=2, out=tmp_path / "first")
    again = raysim.run(**settings, rounds=1, lr=1e-30, out=tmp_path / "again", start_from=first.path)
    before, after = weights_of(first.path), weights_of(again.path)
    assert any("running_mean" in name for name in before)
    weight = next(name for name in before if name.endswith("1.weight"))
    np.testing.assert_allclose(after[weight], before[weight], rtol=0, atol=1e-6)
    mean = next(name for name in before if name.endswith("running_mean"))
    initial = np.zeros_like(before[mean])
    # One epoch of the clients' own batches moves them on from there.
    assert np.abs(after[mean] - before[mean]).max() < np.abs(before[mean] - initial).max()


def test_of_several_models_the_first(trained, tmp_path):
    several = {f"{i}.{name}": value + i for i in (0, 1) for name, value in weights_of(trained.path).items()}
    save_file(several, tmp_path / "several.safetensors")
    one, other = (
        raysim.run(**TINY, rounds=1, in_process=True, out=tmp_path / out, start_from=start)
        for out, start in (("one", trained.path), ("other", tmp_path / "several.safetensors"))
    )
    assert one.summary["model_sha256"] == other.summary["model_sha256"]


def test_what_is_wrong_is_one_line(trained, tmp_path, capsys):
    flags = ["--in-process", "--train-size=120", "--clients=6", "--rounds=1", "--out", str(tmp_path / "run")]
    weights = weights_of(trained.path)
    name, first = next(iter(weights.items()))

    def other(file, dtype, value):
        """The weights with one of another value, all of its array of this type."""
        changed = np.full(first.shape, value, dtype)
        save_file(weights | {name: changed}, tmp_path / file)
        return tmp_path / file

    unfinished, fifo, bfloat16 = tmp_path / "unfinished", tmp_path / "fifo", tmp_path / "bfloat16"
    shutil.copytree(trained.path, unfinished)
    (unfinished / "summary.json").unlink()
    os.mkfifo(fifo)
    torch_save({key: torch.from_numpy(value).bfloat16() for key, value in weights.items()}, bfloat16)
    for start, model, expected in (
        (tmp_path / "nowhere", "mlp", "--start-from: there is no"),
        (tmp_path, "mlp", "model.safetensors'; give a finished run"),
        (trained.path, "small-cnn", "it holds other weights than those of the model small-cnn"),
        (
            unfinished,
            "mlp",
            f"--start-from: the run '{unfinished}' is not finished; `python -m raysim resume` it first",
        ),
        (fifo, "mlp", f"--start-from: '{fifo}' is no file to read; give a finished run"),
        (other("nan", first.dtype, np.nan), "mlp", f"{name} has values that are not finite, or beyond 2.1e+06; give a"),
        (other("inf", np.float16, np.inf), "mlp", f"{name} has values that are not finite"),
        (other("huge", np.float64, -1e300), "mlp", f"{name} has values that are not finite"),
        (other("int", np.int64, 1), "mlp", f"{name} has values of type int64, which are no weights"),
        (bfloat16, "mlp", "it holds values of another type than float16, float32 or float64"),
    ):
        assert main(["run", *flags, "--start-from", str(start), "--model", model]) == 2
        error = capsys.readouterr().err
        assert error.startswith("raysim: --start-from: ")
        assert expected in error
        assert error.count("\n") == 1
        assert not (tmp_path / "run").exists()


def test_a_run_is_not_resumed_from_other_weights(trained, tmp_path):
    start = tmp_path / "start.safetensors"
    save_file(weights_of(trained.path), start)
    raysim.run(**TINY, rounds=1, in_process=True, out=tmp_path / "run", start_from=start)
    save_file({name: 2 * value for name, value in weights_of(trained.path).items()}, start)
    with pytest.raises(InputError, match=r"began with another --start-from .*: what is in it differs"):
        raysim.resume(tmp_path / "run", rounds=2, progress=False)


def test_a_run_goes_on_from_its_own_checkpoints_where_its_start_is_gone(trained, tmp_path, capsys):
    start = tmp_path / "start"
    shutil.copytree(trained.path, start)
    whole = raysim.run(**TINY, rounds=3, in_process=True, out=tmp_path / "whole", start_from=start)
    raysim.run(**TINY, rounds=1, in_process=True, out=tmp_path / "run", start_from=start)
    start.rename(tmp_path / "moved")
    assert main(["resume", str(tmp_path / "run"), "--rounds", "2"]) == 0
    assert f"note: --start-from {start} is gone; the run goes on from its own checkpoints" in capsys.readouterr().out
    parts = raysim.resume(tmp_path / "run", rounds=3, progress=False)
    assert parts.summary["model_sha256"] == whole.summary["model_sha256"]
    for path in (tmp_path / "run" / "checkpoints").glob("server-*"):
        path.write_bytes(b"damaged")
    assert main(["resume", str(tmp_path / "run"), "--rounds", "4"]) == 1
    assert f"--start-from {start} is gone, and no checkpoint of this run is whole; put back" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert main(["resume", str(tmp_path / "run"), "--rounds", "4"]) == 2
    assert "--start-from: there is no" in capsys.readouterr().err
