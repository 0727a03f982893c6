"""Image folders: a folder per class, with or without a test split."""

import os

import numpy as np
from PIL import Image

from raysim.config import resolve
from raysim.data import load
from raysim.single_run import prepare

from ..made import one_line_error, picture, pixels, write_folder


def test_train_and_test(tmp_path):
    write_folder(tmp_path / "train", {"cat": 3, "ant": 2})
    write_folder(tmp_path / "test", {"cat": 1})
    dataset = load(str(tmp_path))
    assert dataset.class_names == ("ant", "cat")
    assert dataset.train.y.tolist() == [0, 0, 1, 1, 1]
    assert np.array_equal(dataset.train.x, [*pixels(2, seed=1), *pixels(3, seed=0)])  # sorted classes, sorted files
    assert dataset.test.y.tolist() == [1]
    assert (dataset.name, dataset.notes) == (tmp_path.name, ())


def test_without_a_test_split_one_is_held_out(tmp_path):
    write_folder(tmp_path, {"a": 12, "b": 6}, channels=1)
    dataset = load(str(tmp_path))
    assert np.bincount(dataset.test.y).tolist() == [2, 1]
    assert np.bincount(dataset.train.y).tolist() == [10, 5]
    assert dataset.shape == (1, 8, 8)
    assert "held out" in dataset.notes[0]


def test_what_a_table_leaves_is_held_out_where_there_is_no_test_split(tmp_path):
    """SDA-FL's Covid-19 images: 12,000 are dealt by its table, and all others are tested on."""
    write_folder(tmp_path, {"a": 12, "b": 6}, channels=1)
    (tmp_path / "table.csv").write_text("4,1\n2,4\n")
    settings = {"dataset": str(tmp_path), "partition": "table", "table": str(tmp_path / "table.csv"), "clients": 2}
    dataset, dealt = prepare(resolve([("test", settings | {"model": "mlp"})]))
    assert np.bincount(dataset.train.y).tolist() == [6, 5]
    assert np.bincount(dataset.test.y).tolist() == [6, 1]
    assert dealt.sizes.tolist() == [5, 6]
    assert "what the partition's table leaves (7 images) is held out" in dataset.notes[0]
    (tmp_path / "table.csv").write_text("10,3\n2,3\n")
    with one_line_error("the partition's table leaves none to test on"):
        prepare(resolve([("test", settings | {"model": "mlp"})]))


def test_a_class_may_be_called_train(tmp_path):
    write_folder(tmp_path, {"train": 3, "plane": 3})
    assert load(str(tmp_path)).class_names == ("plane", "train")


def test_validation_and_other_files_are_noted(tmp_path):
    write_folder(tmp_path / "train", {"a": 2, "b": 2})
    write_folder(tmp_path / "val", {"a": 2})
    (tmp_path / "train" / "a" / "labels.csv").write_text("?")
    (tmp_path / "train" / "a" / ".DS_Store").write_text("?")
    (tmp_path / "train" / ".cache").mkdir()
    first, second = load(str(tmp_path)).notes
    assert "1 files" in first
    assert "val is the test split" in second


def test_sizes_are_made_alike_on_request(tmp_path):
    write_folder(tmp_path, {"a": 3, "b": 3})
    picture(pixels(1, 1, 20)[0]).convert("L").save(tmp_path / "a" / "big.JPG", "JPEG")
    with one_line_error(tmp_path / "a" / "big.JPG", "20x20 grey", "8x8 RGB", "--image-size N"):
        load(str(tmp_path))
    assert load(str(tmp_path), image_size=10).shape == (3, 10, 10)


def test_empty_folders(tmp_path):
    with one_line_error(tmp_path, "no images", "*.parquet", "<class>"):
        load(str(tmp_path))
    write_folder(tmp_path, {"a": 3})
    (tmp_path / "b").mkdir()
    with one_line_error(tmp_path / "b", "no images in this class"):
        load(str(tmp_path))


def test_images_beside_each_other_are_not_a_dataset(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with one_line_error(tmp_path, "<class>"):
        load(str(tmp_path))


def test_a_test_class_without_training_images(tmp_path):
    write_folder(tmp_path / "train", {"a": 2})
    write_folder(tmp_path / "test", {"b": 2})
    with one_line_error(tmp_path / "test" / "b", "does not have"):
        load(str(tmp_path))


def test_one_image_per_class_cannot_be_divided(tmp_path):
    write_folder(tmp_path, {"a": 1, "b": 1})
    with one_line_error("one image per class", "add images or a test split"):
        load(str(tmp_path))


def test_a_broken_image_is_named(tmp_path):
    write_folder(tmp_path, {"a": 6, "b": 6})
    (tmp_path / "a" / "003.png").write_bytes(b"not a picture")
    with one_line_error(tmp_path / "a" / "003.png", "not an image"):
        load(str(tmp_path))


def test_a_strange_name_keeps_the_error_on_one_line(tmp_path):
    write_folder(tmp_path, {"a\nb": 6, "c": 6})
    (tmp_path / "a\nb" / "003.png").write_bytes(b"")
    with one_line_error("003.png"):
        load(str(tmp_path))


def test_a_pipe_is_not_waited_for(tmp_path):
    write_folder(tmp_path, {"a": 6, "b": 6})
    os.mkfifo(tmp_path / "a" / "pipe.png")
    assert len(load(str(tmp_path)).train.y) == 10
