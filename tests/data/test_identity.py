"""Identity of data: whatever of it changes after a run began is noticed when the run is to go on."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import raysim
from raysim.cli import main
from raysim.data import Dataset, Split, identity, load
from raysim.data.identity import identity as identity_of
from raysim.settings import Given
from tests.data.made import encoded, one_line_error, picture, pixels, write_folder, write_idx_set, write_parquet
from tests.data.test_federated_writer import resident


def dataset(**changes) -> Dataset:
    draw = np.random.default_rng(0)
    train, test = (Split(pixels(n, seed=n), draw.integers(0, 3, n)) for n in (30, 12))
    return replace(Dataset("made", ("a", "b", "c"), train, test), **changes)


def changed(split: Split, x: int | None = None, y: int | None = None) -> Split:
    """The split with another pixel in this image, or another label."""
    images, labels = split.x.copy(), split.y.copy()
    if x is not None:
        images[x, 0, -1, -1] ^= 1
    if y is not None:
        labels[y] = (labels[y] + 1) % 3
    return Split(images, labels)


OTHERS = {
    "a training pixel": lambda one: replace(one, train=changed(one.train, x=29)),
    "a training label": lambda one: replace(one, train=changed(one.train, y=0)),
    "a test pixel": lambda one: replace(one, test=changed(one.test, x=0)),
    "a test label": lambda one: replace(one, test=changed(one.test, y=11)),
    "two images exchanged": lambda one: replace(one, train=Split(one.train.x[[1, 0, *range(2, 30)]], one.train.y)),
    "one image less": lambda one: replace(one, train=Split(one.train.x[:-1], one.train.y[:-1])),
    "another shape": lambda one: replace(one, train=Split(one.train.x.reshape(30, 3, 4, 16), one.train.y)),
    "clients": lambda one: replace(one, clients=np.arange(30) % 2),
}


@pytest.mark.parametrize("other", OTHERS)
def test_any_change_gives_another_hash(other):
    one = dataset()
    assert identity_of(dataset()) == identity_of(one)
    assert identity_of(OTHERS[other](one)) != identity_of(one)


def test_clients_are_told_apart_by_number_and_by_name():
    numbers, names = np.arange(30) % 2, np.array(["me", "you"], dtype=object)[np.arange(30) % 2]
    hashes = [identity_of(dataset(clients=each)) for each in (None, numbers, 1 - numbers, names, names[::-1])]
    assert len(set(hashes)) == 5


def test_blocks_and_threads_change_nothing_else(monkeypatch):
    """The last block is shorter, and every block counts."""
    one = dataset()
    monkeypatch.setattr(identity, "BLOCK_BYTES", 7 * one.train.x[0].nbytes)
    cut = identity_of(one)
    monkeypatch.setattr(identity, "THREADS", 1)
    assert identity_of(one) == cut
    assert len({identity_of(replace(one, train=changed(one.train, x=i))) for i in range(30)} | {cut}) == 31


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_images_in_a_mapped_file_are_hashed_without_being_in_memory(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (4_000, 1, 32, 32), dtype=np.uint8)
    np.save(tmp_path / "many.npy", x)
    mapped = np.load(tmp_path / "many.npy", mmap_mode="r")
    y = np.arange(4_000) % 3
    assert identity_of(dataset(train=Split(mapped, y))) == identity_of(dataset(train=Split(x, y)))
    assert resident("many.npy") < 100


def test_the_same_images_have_one_identity_however_they_come(tmp_path):
    """Of arrays, datasets of torch and of Hugging Face, files: only what they hold counts."""
    (x, x_test), y = (pixels(12), pixels(6, seed=1)), np.arange(12) % 2
    y_test = y[:6]
    for split, images, labels in (("train", x, y), ("test", x_test, y_test)):
        write_parquet(tmp_path / "parquet" / f"{split}.parquet", list(map(encoded, images)), labels)
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            (tmp_path / "folder" / split / str(label)).mkdir(parents=True, exist_ok=True)
            picture(image).save(tmp_path / "folder" / split / str(label) / f"{i:02}.png")
    torches = [TensorDataset(torch.from_numpy(a), torch.from_numpy(b)) for a, b in ((x, y), (x_test, y_test))]
    kinds = {"arrays": (x, y, x_test, y_test), "torch": tuple(torches)}
    found = {kind: identity_of(load(Given(f"memory:{kind}", value))) for kind, value in kinds.items()}
    found["parquet"] = identity_of(load(str(tmp_path / "parquet")))
    assert len(set(found.values())) == 1
    order = np.argsort(y, kind="stable"), np.argsort(y_test, kind="stable")  # in which a folder has them
    sorted_arrays = (x[order[0]], y[order[0]], x_test[order[1]], y_test[order[1]])
    assert identity_of(load(str(tmp_path / "folder"))) == identity_of(load(Given("memory:sorted", sorted_arrays)))


# -- at a resume -------------------------------------------------------------------------------------------------------

TINY = {"model": "mlp", "clients": 2, "rounds": 1, "privacy": 0, "in_process": True, "progress": False}


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def new_test_images(root: Path) -> None:
    shutil.rmtree(root / "test")
    write_folder(root / "test", {"b": 4, "a": 4})


EDITS = {
    "test images replaced": new_test_images,
    "two classes' images exchanged": lambda root: exchange(root / "train" / "a", root / "train" / "b"),
    "one training image": lambda root: picture(pixels(1, seed=9)[0]).save(root / "train" / "a" / "003.png"),
}


@pytest.mark.parametrize("normalise", ["data", "half"])
@pytest.mark.parametrize("edit", EDITS)
def test_a_run_does_not_go_on_with_a_folder_that_was_edited(tmp_path, edit, normalise):
    """Of as many images of each class as before, and with `--normalise half` whatever they are."""
    root = tmp_path / "data"
    write_folder(root / "train", {"a": 8, "b": 8})
    write_folder(root / "test", {"a": 4, "b": 4})
    shutil.copytree(root, tmp_path / "as it was")
    out = raysim.run(**TINY, dataset=str(root), normalise=normalise, out=tmp_path / "run").path
    EDITS[edit](root)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with one_line_error("began with other data: images or labels of --dataset", root, "put back what was there"):
        raysim.resume(out, rounds=2, progress=False)
    assert before == {path: path.read_bytes() for path in before}
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "as it was", root)
    assert raysim.resume(out, rounds=2, progress=False).summary["rounds"] == 2


def write_files(root: Path, seed: int) -> None:
    blobs = list(map(encoded, pixels(16, seed=seed)))
    write_parquet(root / "train.parquet", blobs[:12], np.arange(12) % 2)
    write_parquet(root / "test.parquet", blobs[12:], np.arange(4) % 2)


def write_digits(root: Path, first: int) -> None:
    write_idx_set(root / "MNIST" / "raw", labels=np.roll(np.arange(10), first))


LOADERS = {  # name -> how it is written (by a number that changes it), and how it is asked for
    "parquet": (write_files, lambda root: {"dataset": str(root), "normalise": "half"}),
    "mnist": (write_digits, lambda root: {"dataset": "mnist", "data": str(root)}),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_other_loaders_data_is_looked_at_too(tmp_path, capsys, kind):
    write, asked = LOADERS[kind]
    write(tmp_path / "data", 0)
    out = raysim.run(**TINY, **asked(tmp_path / "data"), out=tmp_path / "run").path
    write(tmp_path / "data", 1)
    capsys.readouterr()
    assert main(["resume", str(out), "--rounds", "2", "--in-process"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"raysim: --resume: {out} began with other data")
