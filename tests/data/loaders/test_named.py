"""Datasets by name: where they are looked for, that they are checked, and what is said when they are not there."""

import hashlib
import pickle
import urllib.error
import urllib.request

import numpy as np
import pytest

from raysim.data import load
from raysim.data.loaders import named
from raysim.data.torchvision_import import import_torchvision

from ..made import SHARED, encoded, one_line_error, picture, pixels, write_idx, write_idx_set, write_parquet


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch, tmp_path):
    """No environment, no Debian packages, no network: only what a test makes in `tmp_path`."""

    def no_network(*arguments, **options):
        raise urllib.error.URLError("no\nnetwork")

    monkeypatch.delenv("RAYSIM_DATA", raising=False)
    monkeypatch.setattr(named, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    monkeypatch.chdir(tmp_path)


def test_class_names():
    counts = [len(dataset.class_names) for dataset in named.DATASETS.values()]
    assert counts == [10, 10, 26, 10, 100, 10, 2]
    names = named.DATASETS["cifar100"].class_names
    assert names == tuple(sorted(set(names)))


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST/raw"), ("fashion_mnist", "FashionMNIST/raw")])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_torchvision_layout_of_the_mnist_family(tmp_path, name, folder, suffix):
    write_idx_set(tmp_path / folder, suffix=suffix)
    dataset = load(name, data=tmp_path)
    assert np.array_equal(dataset.train.x, pixels(20, 1, 28, 0))
    assert np.array_equal(dataset.test.x, pixels(20, 1, 28, 1))
    assert dataset.train.y.tolist() == [*range(10)] * 2
    assert dataset.train.x.flags.c_contiguous
    assert load(name, data=tmp_path, image_size=32).shape == (1, 32, 32)


def test_emnist_letters_count_from_one_and_lie_on_their_side(tmp_path):
    write_idx_set(tmp_path / "EMNIST/raw", named.DATASETS["emnist"].idx_files, range(1, 27))
    dataset = load("emnist", data=tmp_path)
    assert (dataset.classes, dataset.class_names[0]) == (26, "a")
    assert dataset.train.y.tolist() == [*range(20)]
    assert np.array_equal(dataset.train.x, pixels(20, 1, 28, 0).transpose(0, 1, 3, 2))
    write_idx(tmp_path / "EMNIST/raw/emnist-letters-train-labels-idx1-ubyte", np.zeros(20))
    with one_line_error("emnist-letters-train-labels", "row 0", "label 0", "1..26"):
        load("emnist", data=tmp_path)


@pytest.mark.parametrize("first", [0, 1])
def test_emnist_from_parquet_counts_from_zero_or_one(tmp_path, first):
    blobs = [encoded(x) for x in pixels(26, 1)]
    for split in ("train", "test"):
        write_parquet(tmp_path / "emnist" / f"{split}.parquet", blobs, [*range(first, 26 + first)], image="image")
    assert load("emnist", data=tmp_path).train.y.tolist() == [*range(26)]


def test_the_order_of_lookup(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYSIM_DATA", str(tmp_path / "here"))
    write_idx_set(tmp_path / "debian" / "fashion-mnist", suffix=".gz")
    assert len(load("fashion_mnist").train.y) == 20
    write_idx(tmp_path / "here/FashionMNIST/raw/t10k-labels-idx1-ubyte", np.zeros(20))
    with one_line_error(tmp_path / "here/FashionMNIST/raw", "train-images-idx3-ubyte", "missing"):
        load("fashion_mnist")
    blobs = [encoded(x) for x in pixels(12, 1)]
    write_parquet(tmp_path / "here/fashion_mnist/train.parquet", blobs, [0, 1] * 6)
    dataset = load("fashion_mnist")
    assert (len(dataset.train.y), dataset.classes) == (10, 10)
    assert dataset.class_names[9] == "Ankle boot"
    with one_line_error(tmp_path / "elsewhere"):
        load("mnist", data=tmp_path / "elsewhere")


def test_data_is_the_folder_data_unless_told(tmp_path):
    write_idx_set(tmp_path / "data/MNIST/raw")
    assert load("mnist").classes == 10


@pytest.mark.parametrize("name", named.DATASETS)
def test_not_found_says_where_it_looked_and_what_to_do(tmp_path, name):
    ways = ["--data DIR", "RAYSIM_DATA", "--download"]
    with one_line_error(name, f"d/{name}/*.parquet", f"d/{named.DATASETS[name].layout}", *ways):
        load(name, data=tmp_path / "d")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("name", named.DATASETS)
def test_a_download_that_fails_is_one_line(tmp_path, name, capsys):
    with one_line_error(name, tmp_path / "d", "failed", "--data DIR"):
        load(name, data=tmp_path / "d", download=True)


def test_wrong_idx_files(tmp_path):
    folder = write_idx_set(tmp_path / "MNIST/raw")
    write_idx(folder / "t10k-labels-idx1-ubyte", np.arange(20))
    with one_line_error(folder / "t10k-labels-idx1-ubyte", "row 10", "label 10", "0..9"):
        load("mnist", data=tmp_path)
    write_idx(folder / "t10k-labels-idx1-ubyte", np.arange(5))
    with one_line_error(folder / "t10k-images-idx3-ubyte", "20 images", "5 labels"):
        load("mnist", data=tmp_path)


class Payload:
    """Unpickling this makes a file."""

    def __reduce__(self):
        return open, ("unpickled", "w")


def test_cifar_is_not_unpickled_unless_its_checksum_is_right(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        (folder / name).write_bytes(pickle.dumps(Payload()))
    with one_line_error(folder, "corrupted", "--download"):
        load("cifar10", data=tmp_path)
    assert not (tmp_path / "unpickled").exists()


def md5(path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_cifar_in_torchvision_layout(tmp_path, monkeypatch):
    kind, x = import_torchvision().datasets.CIFAR100, pixels(6, size=32)
    folder = tmp_path / kind.base_folder
    folder.mkdir()
    contents = {"train": {"data": x.reshape(6, -1), "fine_labels": [0, 1, 2, 3, 4, 99]}}
    contents |= {"test": {"data": x[:2].reshape(2, -1), "fine_labels": [5, 6]}, "meta": {"fine_label_names": []}}
    for name, content in contents.items():
        (folder / name).write_bytes(pickle.dumps(content))
    monkeypatch.setattr(kind, "train_list", [["train", md5(folder / "train")]])
    monkeypatch.setattr(kind, "test_list", [["test", md5(folder / "test")]])
    monkeypatch.setattr(kind, "meta", {"filename": "meta", "key": "fine_label_names", "md5": md5(folder / "meta")})
    dataset = load("cifar100", data=tmp_path)
    assert np.array_equal(dataset.train.x, x)
    assert dataset.train.x.flags.c_contiguous
    assert dataset.train.y.tolist() == [0, 1, 2, 3, 4, 99]
    assert (dataset.train.y.dtype, dataset.classes, dataset.class_names[99]) == (np.int64, 100, "worm")
    assert dataset.test.y.tolist() == [5, 6]


def test_svhn_in_torchvision_layout(tmp_path, monkeypatch):
    scipy_io = pytest.importorskip("scipy.io")
    kind, x = import_torchvision().datasets.SVHN, pixels(4, size=32)
    files = {}
    for split in ("train", "test"):
        path = tmp_path / f"{split}_32x32.mat"
        scipy_io.savemat(path, {"X": x.transpose(2, 3, 1, 0), "y": np.array([[10], [1], [2], [9]])})
        files[split] = ["", path.name, md5(path)]
    monkeypatch.setattr(kind, "split_list", files)
    dataset = load("svhn", data=tmp_path)
    assert np.array_equal(dataset.train.x, x)
    assert dataset.test.y.tolist() == [0, 1, 2, 9]
    (tmp_path / "test_32x32.mat").write_bytes(b"?")
    with one_line_error("train_32x32.mat", "corrupted"):
        load("svhn", data=tmp_path)


def test_celeba_in_torchvision_layout(tmp_path, monkeypatch):
    kind, folder, names = import_torchvision().datasets.CelebA, tmp_path / "celeba", [f"{i}.jpg" for i in range(8)]
    (folder / "img_align_celeba").mkdir(parents=True)
    for name in names:
        picture(np.full((3, 218, 178), 100, np.uint8)).save(folder / "img_align_celeba" / name)

    def table(header, row):
        return "\n".join([*header, *(f"{name} {row(i)}" for i, name in enumerate(names))]) + "\n"

    contents = {
        "list_attr_celeba.txt": table(["8", "Bald Smiling"], lambda i: f"-1 {1 if i % 2 else -1}"),
        "list_eval_partition.txt": table([], lambda i: [0, 0, 0, 0, 1, 1, 2, 2][i]),
        "identity_CelebA.txt": table([], lambda i: i),
        "list_bbox_celeba.txt": table(["8", "x y"], lambda i: "1 2"),
        "list_landmarks_align_celeba.txt": table(["8", "x y"], lambda i: "1 2"),
    }
    for name, content in contents.items():
        (folder / name).write_text(content)
    monkeypatch.setattr(kind, "file_list", [("", md5(folder / name), name) for name in contents])
    dataset = load("celeba", data=tmp_path)
    assert dataset.class_names == ("not smiling", "smiling")
    assert dataset.train.y.tolist() == [0, 1, 0, 1]
    assert dataset.test.y.tolist() == [0, 1]
    assert dataset.shape == (3, 84, 84)
    assert load("celeba", data=tmp_path, image_size=32).shape == (3, 32, 32)


def test_celeba_from_parquet_takes_smiling(tmp_path):
    for split in ("train", "test"):
        blobs = [encoded(x) for x in pixels(4)]
        write_parquet(tmp_path / f"celeba/{split}.parquet", blobs, [True, False] * 2, image="image", label="Smiling")
    dataset = load("celeba", data=tmp_path)
    assert (dataset.train.y.tolist(), dataset.shape) == ([1, 0, 1, 0], (3, 84, 84))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real data is not on this machine")
def test_real_data():
    mnist = load("mnist", data=SHARED)
    assert (mnist.train.x.shape, mnist.test.x.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert (np.bincount(load("fashion_mnist", data=SHARED).train.y) == 6_000).all()
    cifar = load("cifar10", data=SHARED, train_size=1_000, test_size=200)
    assert (cifar.train.x.shape, cifar.class_names[0]) == ((1_000, 3, 32, 32), "airplane")
    assert (np.bincount(cifar.train.y) == 100).all()
    assert 100 < cifar.train.x.mean() < 140
