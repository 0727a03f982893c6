"""Data of the user's own: arrays, datasets of torch and of Hugging Face, natural and own partitions."""

import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

import raysim
from raysim.cli import main
from raysim.data import load
from raysim.data.dataset import Columns
from raysim.data.own import found, name_of_data
from raysim.errors import InputError
from raysim.settings import Given
from tests.data.made import encoded, pixels, write_parquet

HERE = "tests.data.test_own"
TINY = {"model": "mlp", "clients": 4, "rounds": 1, "privacy": 0, "in_process": True, "progress": False}


def arrays(train: int = 40, test: int = 20, channels: int = 3):
    """Images [N, C, 8, 8] and labels 0 to 3, twice."""
    draw = np.random.default_rng(0)
    return [
        draw.integers(0, 256, (train, channels, 8, 8)).astype(np.uint8), np.arange(train) % 4,
        draw.integers(0, 256, (test, channels, 8, 8)).astype(np.uint8), np.arange(test) % 4,
    ]  # fmt: skip


def loaded(value, **options):
    return load(Given(name_of_data(value), value), **options)


def same(one, other) -> bool:
    splits = ((one.train, other.train), (one.test, other.test))
    return all(np.array_equal(a.x, b.x) and np.array_equal(a.y, b.y) for a, b in splits)


# -- arrays ------------------------------------------------------------------------------------------------------------


def test_arrays_are_a_dataset():
    x, y, x_test, y_test = arrays()
    data = loaded((x, y, x_test, y_test))
    assert np.array_equal(data.train.x, x)
    assert np.array_equal(data.test.y, y_test)
    assert data.class_names == ("0", "1", "2", "3")


def test_channels_may_be_last_floats_go_from_0_to_1_and_tensors_will_do():
    x, y, x_test, y_test = arrays()
    expected = loaded((x, y, x_test, y_test))
    last = [np.moveaxis(each, 1, 3) for each in (x, x_test)]
    assert same(loaded((last[0], y, last[1], y_test)), expected)
    assert same(loaded((x / 255, y, (x_test / 255).astype(np.float32), y_test)), expected)
    assert same(loaded([torch.from_numpy(each) for each in (x, y, x_test, y_test)]), expected)
    assert same(loaded(dict(zip(("x", "y", "x_test", "y_test"), arrays(), strict=True))), expected)
    assert loaded((x[:, 0], y, x_test[:, 0], y_test)).shape == (1, 8, 8)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_that_are_pixels_come_back_whatever_their_precision(dtype):
    every = np.arange(256, dtype=np.uint8).reshape(4, 1, 8, 8).repeat(10, 0)
    floats = (every / 255).astype(dtype)
    assert np.array_equal(loaded((floats, np.arange(40) % 4) * 2).train.x, every)
    copied = floats.astype(np.float64)  # with the errors of the type they were made in
    if dtype != np.float16:
        assert np.array_equal(loaded((copied, np.arange(40) % 4) * 2).train.x, every)


def test_whole_numbers_and_truth_values_are_pixels():
    x, y, *_ = arrays()
    assert np.array_equal(loaded((x.astype(np.int32), y) * 2).train.x, x)
    assert np.array_equal(loaded((x > 127, y) * 2).train.x, np.where(x > 127, 255, 0))


@pytest.mark.parametrize("split", ["x", "x_test"])
@pytest.mark.parametrize("signal", [0.001, 1e-5, 0.5 / 255])
def test_floats_that_are_between_two_pixels_are_refused_and_not_rounded(split, signal):
    value = dict(zip(("x", "y", "x_test", "y_test"), arrays(), strict=True))
    value[split] = np.zeros((len(value[split]), 8, 8))
    value[split][7, 2, 3] = signal
    with pytest.raises(InputError, match=r"^[^\n]*$") as raised:
        loaded(value)
    assert f"{split}: image 7 has {signal:g}, which is between two of the 256 levels of a pixel" in str(raised.value)


def test_without_a_test_split_a_part_is_held_out_and_sizes_count():
    x, y, *_ = arrays()
    data = loaded((x, y), train_size=12, image_size=16)
    assert (data.train.x.shape, len(data.test.y)) == ((12, 3, 16, 16), 4)
    assert "no test split" in data.notes[0]


def test_other_data_has_another_digest():
    x, y, x_test, y_test = arrays()
    changed = x.copy()
    changed[3, 0, 0, 0] ^= 1
    digests = [loaded(each).digest for each in ((x, y, x_test, y_test), arrays(), (changed, y, x_test, y_test))]
    assert digests[0] == digests[1] != digests[2]
    assert len({loaded((x, y), seed=seed).digest for seed in (1, 2)}) == 1  # of whatever is held out: seeds compare


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.arange(40) - 1}, "y: row 0: label -1 is not one of 0..38"),
        ({"y": np.arange(40) * 50}, "label 1950, with 60 images in all; labels must number the classes from 0"),
        ({"y": np.arange(40) / 2}, "y: float64 of shape (40,); give a whole number from 0"),
        ({"y": np.arange(39) % 4}, "40 images in x, but 39 labels in y"),
        ({"x": np.full((40, 8, 8), 1.5)}, "x: values from 1.5 to 1.5"),
        ({"x": np.full((40, 8, 8), np.nan)}, "x: values from nan to nan"),
        ({"x": np.full((40, 8, 8), "a")}, "x: <U1; give pixels as uint8"),
        ({"x": np.full((40, 8, 8), 1j)}, "x: complex128; give pixels as uint8"),
        ({"x": np.full((40, 8, 8), 256)}, "x: values from 256 to 256"),
        ({"x": np.full((40, 8, 8), -1)}, "x: values from -1 to -1"),
        ({"x": np.zeros((40, 64), np.uint8)}, "x: shape (40, 64)"),
        ({"x": np.zeros((0, 3, 8, 8), np.uint8)}, "x: shape (0, 3, 8, 8)"),
        ({"x_test": np.zeros((20, 1, 8, 8), np.uint8)}, "training images are 8x8 RGB, test images 8x8 grey"),
    ],
)
def test_wrong_arrays_give_one_line(change, message):
    value = dict(zip(("x", "y", "x_test", "y_test"), arrays(), strict=True)) | change
    with pytest.raises(InputError, match=r"^[^\n]*$") as raised:
        loaded(value)
    assert message in str(raised.value)


@pytest.mark.parametrize("value", [3, "text", (), (1, 2, 3), {"a": 1}, [np.zeros(3)], iter([])])
def test_what_is_no_data_is_said(value):
    with pytest.raises(InputError, match=r"no data that can be used|shape \(3,\)"):
        found(value, "--dataset it", Columns())


# -- datasets of torch -------------------------------------------------------------------------------------------------


class Broken(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, i):
        if i == 7:
            raise OSError("the disk\nis gone")
        return torch.zeros(3, 8, 8), i % 2


class Uneven(Broken):
    def __getitem__(self, i):
        return torch.zeros(3, 8 + i // 5, 8), i % 2


class Alike(Broken):
    def __init__(self, image):
        self.image = image

    def __getitem__(self, i):
        return self.image, i % 2


class Mixed(Broken):
    def __getitem__(self, i):
        return torch.zeros(3, 8, 8, dtype=torch.float32 if i == 4 else torch.uint8), i % 2


class Halves(Broken):
    def __getitem__(self, i):
        return torch.zeros(3, 8, 8), i / 2


def test_a_dataset_of_torch_gives_what_its_arrays_do():
    x, y, x_test, y_test = arrays()
    train, test = (TensorDataset(torch.from_numpy(a), torch.from_numpy(b)) for a, b in ((x, y), (x_test, y_test)))
    assert same(loaded((train, test)), loaded(tuple(arrays())))
    assert same(loaded({"train": train, "validation": test}), loaded(tuple(arrays())))
    assert name_of_data(train) == "memory:TensorDataset"


def test_pictures_are_read_like_arrays():
    from PIL import Image

    x, y, *_ = arrays()
    pairs = [(Image.fromarray(image.transpose(1, 2, 0)), int(label)) for image, label in zip(x, y, strict=True)]
    assert np.array_equal(loaded((pairs, pairs)).train.x, x)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (torch.full((3, 8, 8), 0.001), "image 0 has 0.001, which is between two of the 256 levels"),
        (Image.new("F", (8, 8), 0.3), "image 0 has 0.3, which is between two of the 256 levels"),
        (Image.new("F", (8, 8), 200.5), "values from 200.5 to 200.5"),
        (Image.new("I", (8, 8), 40_000), "values from 40000 to 40000"),
        (Image.new("I;16", (8, 8), 40_000), "values from 40000 to 40000"),
        (np.full((8, 8), 256, np.uint16), "values from 256 to 256"),
    ],
)
def test_pictures_deeper_than_8_bits_are_refused_and_not_rounded(image, message):
    with pytest.raises(InputError, match=r"^[^\n]*$") as raised:
        loaded(Alike(image))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Broken(), "item 7: OSError: the disk is gone"),
        (Uneven(), "item 5 is float32 of shape (3, 9, 8), the first float32 of shape (3, 8, 8); make them alike"),
        (Mixed(), "item 4 is float32 of shape (3, 8, 8), the first uint8 of shape (3, 8, 8); make them alike"),
        (Halves(), "item 0: TypeError: 'float' object cannot be interpreted as an integer"),
    ],
)
def test_a_dataset_that_fails_gives_one_line(dataset, message):
    with pytest.raises(InputError, match=r"^[^\n]*$") as raised:
        loaded(dataset)
    assert message in str(raised.value)


# -- Hugging Face ------------------------------------------------------------------------------------------------------


class Table:
    """As much of a Hugging Face Dataset as is used."""

    def __init__(self, table: pa.Table, names=None):
        self.table, self._fingerprint = table, "f"
        self.column_names = table.column_names
        self.features = {name: type("Feature", (), {"names": names} if names else {}) for name in self.column_names}

    def __len__(self):
        return len(self.table)

    def __getitem__(self, rows):
        return self.table if rows == slice(None) else self.table.take(rows)

    def select_columns(self, columns):
        return Table(self.table.select(columns))

    def with_format(self, kind):
        assert kind == "arrow"
        return self


def hugging_face(count: int = 24, **columns) -> pa.Table:
    images = [{"bytes": encoded(image), "path": None} for image in pixels(count, 3, 8)]
    return pa.table({"image": images, "label": [i % 4 for i in range(count)]} | columns)


def test_a_dataset_of_hugging_face():
    data = loaded(Table(hugging_face(), names=["a", "b", "c", "d"]))
    assert data.class_names == ("a", "b", "c", "d")
    assert sorted([*data.train.x.reshape(20, -1).sum(1), *data.test.x.reshape(4, -1).sum(1)]) == sorted(
        pixels(24, 3, 8).reshape(24, -1).sum(1)
    )
    renamed = hugging_face().rename_columns(["picture", "digit"])
    named = loaded((Table(renamed), Table(renamed)), columns=Columns("picture", "digit"))
    assert np.array_equal(named.train.x, pixels(24, 3, 8))
    with pytest.raises(InputError, match="no column img or image with the images; it has picture, digit"):
        loaded(Table(renamed))


def test_pixels_may_be_lists():
    x, y, *_ = arrays(channels=1)
    data = loaded((Table(pa.table({"image": x[:, 0].tolist(), "label": y})),) * 2)
    assert np.array_equal(data.train.x, x)


def test_the_real_package_reads_a_folder(tmp_path):
    pytest.importorskip("datasets")
    for split in ("train", "test"):
        write_parquet(tmp_path / f"{split}.parquet", [encoded(x) for x in pixels(24, 3, 8)], [i % 4 for i in range(24)])
    data = load(f"hf:{tmp_path}")
    assert np.array_equal(data.train.x, pixels(24, 3, 8))


def test_it_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(InputError, match="pip install datasets"):
        load("hf:mnist")


# -- functions of modules ----------------------------------------------------------------------------------------------


def as_arrays():
    return tuple(arrays())


def fails():
    raise ValueError("no such\nfile")


def test_a_function_of_a_module_is_called():
    assert same(load(f"{HERE}:as_arrays"), loaded(tuple(arrays())))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{HERE}:fails", "ValueError: no such file"),
        (f"{HERE}:nothing", "no attribute 'nothing'"),
        ("memory:arrays", "raysim.resume(path, dataset=…)"),
    ],
)
def test_the_command_line_says_what_is_wrong(name, message, capsys):
    assert main(["run", "--dataset", name, "--in-process"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


# -- natural partitions ------------------------------------------------------------------------------------------------

WRITERS = np.array(["ann", "bob", "cat", "dan"] * 10)


def client_counts(path) -> list[int]:
    return [sum(map(int, line.split(","))) for line in (path / "labels.csv").read_text().splitlines()]


def test_a_column_names_the_clients(tmp_path):
    x, y, x_test, y_test = arrays()
    data = {"x": x, "y": y, "x_test": x_test, "y_test": y_test, "writer": np.sort(WRITERS)}
    settings = {"dataset": data, "partition": "column", "client_column": "writer"}
    run = raysim.run(**TINY, **settings, out=tmp_path / "run")
    assert client_counts(run.path) == [10, 10, 10, 10]
    labels = np.loadtxt(run.path / "labels.csv", delimiter=",")
    assert np.array_equal(
        labels, [np.bincount(y[data["writer"] == w], minlength=4) for w in ("ann", "bob", "cat", "dan")]
    )
    three = raysim.run(**TINY | {"clients": 3}, **settings, out=tmp_path / "three")
    assert client_counts(three.path) == [10, 10, 10]
    assert "3 of 4 values of column writer" in (three.path / "events.jsonl").read_text()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"client_column": "nobody"}, "no column nobody with the clients"),
        (
            {"client_column": "writer", "clients": 5},
            "5 clients, but 4 different values in column writer; give --clients 4",
        ),
        ({}, "--partition column goes with --client-column"),
        ({"client_column": "writer", "dataset": "shapes"}, "--dataset shapes has no columns"),
        ({"client_column": "short"}, "short has shape (3,); give one value for each of 40 images"),
    ],
)
def test_a_column_that_does_not_do(settings, message, tmp_path):
    data = dict(zip(("x", "y", "x_test", "y_test"), arrays(), strict=True)) | {"writer": WRITERS, "short": [1, 2, 3]}
    with pytest.raises(InputError) as raised:
        raysim.run(**TINY | {"dataset": data, "partition": "column", "out": tmp_path / "run"} | settings)
    assert message in str(raised.value)


@pytest.mark.parametrize("writers", [list(WRITERS), [i % 4 for i in range(40)]])
def test_a_column_of_parquet_files(tmp_path, writers):
    images = [encoded(image) for image in pixels(40, 3, 8)]
    (tmp_path / "data").mkdir()
    for i, rows in enumerate((slice(0, 15), slice(15, 40))):
        table = {"picture": images[rows], "digit": [n % 4 for n in range(40)][rows], "writer": writers[rows]}
        pa.parquet.write_table(pa.table(table), tmp_path / f"data/train-{i}.parquet")
    words = ["--dataset", str(tmp_path / "data"), "--image-column", "picture", "--label-column", "digit"]
    words += ["--partition", "column", "--client-column", "writer", "--clients", "4", "--out", str(tmp_path / "run")]
    assert main(["run", *words, "--model", "mlp", "--rounds", "1", "--privacy", "0", "--in-process"]) == 0
    assert sum(client_counts(tmp_path / "run")) == 36  # a sixth... of each class is held out
    held = load(str(tmp_path / "data"), columns=Columns("picture", "digit", "writer"))
    expected = np.unique(held.clients, return_counts=True)[1].tolist()
    assert client_counts(tmp_path / "run") == expected
    with pytest.raises(InputError, match="no column author with the clients; it has picture, digit, writer"):
        load(str(tmp_path / "data"), columns=Columns("picture", "digit", "author"))


def test_a_row_without_a_client_is_named(tmp_path):
    images = [encoded(image) for image in pixels(4, 3, 8)]
    table = pa.table({"image": images, "label": [0, 1, 0, 1], "writer": ["a", "b", None, "a"]})
    pa.parquet.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(InputError, match=r"row 2: no client in column writer"):
        load(str(tmp_path), columns=Columns(client="writer"))


# -- own partitions ----------------------------------------------------------------------------------------------------


def halves(labels, clients, rng):
    """The first half of the samples for the first client, the rest for the others in turn."""
    owner = np.arange(len(labels)) % (clients - 1) + 1
    owner[: len(labels) // 2] = 0
    return owner


@dataclass(frozen=True)
class Turns(raysim.Partitioner):
    """In turn, `step` apart."""

    step: int = 1

    def owners(self, members, clients, rng):
        samples = sum(map(len, members))
        return np.arange(samples) * self.step % clients, (f"in turn, {self.step} apart",)


@pytest.mark.parametrize(
    ("partition", "sizes"),
    [(f"{HERE}:halves", [20, 7, 6, 7]), (halves, [20, 7, 6, 7]), (Turns(3), [10] * 4), (f"{HERE}:Turns", [10] * 4)],
)
def test_an_own_partition_deals(partition, sizes, tmp_path):
    run = raysim.run(**TINY, dataset=tuple(arrays()), partition=partition, out=tmp_path / "run")
    assert client_counts(run.path) == sizes
    assert json.loads((run.path / "config.json").read_text())["sources"].keys() == {"dataset", "partition"}
    assert "test_own" in (run.path / "report.html").read_text()  # read again without the object


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (lambda labels, clients, rng: labels / 2, "returns float64 of shape (40,)"),
        (lambda labels, clients, rng: labels[:3], "of shape (3,); needed: a client for each of 40 samples"),
        (lambda labels, clients, rng: labels + 1, "owners from 1 to 4 of 4 clients"),
        (lambda labels, clients, rng: labels * 0, "client 1 has no sample"),
        (lambda labels: 1 / 0, "takes 1 positional argument but 3 were given"),
        (3, "int is no partition"),
    ],
)
def test_an_own_partition_that_fails_gives_one_line(partition, message, tmp_path):
    with pytest.raises(InputError, match=r"^--partition [^\n]*$") as raised:
        raysim.run(**TINY, dataset=tuple(arrays()), partition=partition, out=tmp_path / "run")
    assert message in str(raised.value)


# -- identity ----------------------------------------------------------------------------------------------------------


def test_a_run_on_data_in_memory_is_resumed_with_that_data_only(tmp_path):
    run = raysim.run(**TINY, dataset=tuple(arrays()), out=tmp_path / "run")
    (run.path / "summary.json").unlink()
    with pytest.raises(InputError, match=r"raysim.resume\(path, dataset=…\)"):
        raysim.resume(run.path, progress=False)
    x, y, x_test, y_test = arrays()
    with pytest.raises(InputError, match="images or labels of --dataset memory:arrays have changed since"):
        raysim.resume(run.path, dataset=(255 - x, y, x_test, y_test), progress=False)
    assert raysim.resume(run.path, dataset=tuple(arrays()), progress=False).accuracy == run.accuracy
