"""Folders of Parquet files: splits, columns, class names, and every way a file can be wrong."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysim.data import load

from ..made import encoded, one_line_error, pixels, write_parquet

X = pixels(12)
BLOBS = [encoded(x) for x in X]
Y = [0, 1, 2] * 4


def test_round_trip_with_names_over_several_files_and_row_groups(tmp_path):
    for part in (0, 1):
        path = tmp_path / f"train-0000{part}-of-00002.parquet"
        write_parquet(path, BLOBS[part::2], Y[part::2], names=["ant", "bee", "cat"], group=2)
    write_parquet(tmp_path / "test-00000-of-00001.parquet", BLOBS[:3], Y[:3])
    dataset = load(str(tmp_path))
    order = [*range(0, 12, 2), *range(1, 12, 2)]
    assert np.array_equal(dataset.train.x, X[order])
    assert dataset.train.y.tolist() == [Y[i] for i in order]
    assert np.array_equal(dataset.test.x, X[:3])
    assert (dataset.train.x.dtype, dataset.train.y.dtype) == (np.uint8, np.int64)
    assert dataset.class_names == ("ant", "bee", "cat")
    assert (dataset.classes, dataset.shape, dataset.notes) == (3, (3, 8, 8), ())
    some = load(str(tmp_path), train_size=6, test_size=3, seed=5)
    kept = [next(i for i in range(12) if np.array_equal(dataset.train.x[i], x)) for x in some.train.x]
    assert kept == sorted(kept)
    assert np.bincount(some.train.y).tolist() == [2, 2, 2]
    assert some.train.y.tolist() == dataset.train.y[kept].tolist()


@pytest.mark.parametrize("place", ["validation-0.parquet", "valid.parquet", "validation/0.parquet"])
def test_validation_stands_in_for_a_test_split(tmp_path, place):
    write_parquet(tmp_path / "train" / "0.parquet", BLOBS, Y)
    write_parquet(tmp_path / place, BLOBS[:3], Y[:3])
    dataset = load(str(tmp_path))
    assert (len(dataset.train.y), len(dataset.test.y)) == (12, 3)
    assert "validation split is the test split" in dataset.notes[0]
    write_parquet(tmp_path / "test" / "0.parquet", BLOBS[:6], Y[:6])
    assert len(load(str(tmp_path)).test.y) == 6


def test_without_a_test_split_one_is_held_out(tmp_path):
    write_parquet(tmp_path / "anything.parquet", BLOBS * 3, Y * 3)
    dataset = load(str(tmp_path), seed=1)
    assert np.bincount(dataset.test.y).tolist() == [2, 2, 2]
    assert len(dataset.train.y) == 30
    assert "1/6" in dataset.notes[0]
    assert np.array_equal(dataset.test.x, load(str(tmp_path), seed=1).test.x)
    assert not np.array_equal(dataset.test.x, load(str(tmp_path), seed=2).test.x)


def test_fine_labels_win_and_other_columns_are_not_read(tmp_path):
    images = pa.array([{"bytes": blob, "path": "x"} for blob in BLOBS])
    others = {"coarse_label": [9] * 12, "label": [7] * 12, "junk": ["?"] * 12}
    pq.write_table(pa.table({"image": images, **others, "fine_label": Y}), tmp_path / "train.parquet")
    assert sorted(set(load(str(tmp_path)).train.y.tolist())) == [0, 1, 2]


def test_plain_binary_images_and_small_integers(tmp_path):
    write_parquet(tmp_path / "train.parquet", BLOBS, pa.array(Y, pa.uint8()), image="image", struct=False)
    assert load(str(tmp_path)).classes == 3


def test_numbers_are_the_names_where_there_are_none(tmp_path):
    write_parquet(tmp_path / "train.parquet", BLOBS, [0, 0, 5] * 4)  # classes 1..4 are empty
    assert load(str(tmp_path)).class_names == ("0", "1", "2", "3", "4", "5")


@pytest.mark.parametrize("metadata", [b"{", b"[]", b"null", b'{"info": {"features": {"label": {"names": [1, 2]}}}}'])
def test_malformed_metadata_is_as_good_as_none(tmp_path, metadata):
    path = write_parquet(tmp_path / "train.parquet", BLOBS, Y)
    pq.write_table(pq.read_table(path).replace_schema_metadata({"huggingface": metadata}), path)
    assert load(str(tmp_path)).class_names == ("0", "1", "2")


def test_images_of_train_and_test_must_be_alike(tmp_path):
    write_parquet(tmp_path / "train.parquet", BLOBS, Y)
    write_parquet(tmp_path / "test.parquet", [encoded(x) for x in pixels(3, 1)], [0, 1, 2])
    with one_line_error("8x8 RGB", "8x8 grey", "--image-size N"):
        load(str(tmp_path))
    assert load(str(tmp_path), image_size=8).test.x.shape == (3, 3, 8, 8)


def wrong_labels(labels, **options):
    return lambda folder: write_parquet(folder / "train.parquet", BLOBS, labels, **options)


@pytest.mark.parametrize(
    ("make", "mentions"),
    [
        (wrong_labels([0, None, 1] * 4), ["row 1", "no label"]),
        (wrong_labels([0.5, 1.0, 2.0] * 4), ["column label is double", "integers"]),
        (wrong_labels(["a", "b", "c"] * 4), ["column label is string", "integers"]),
        (wrong_labels([0, 1, -1] * 4), ["row 2", "label -1", "0..1"]),
        (wrong_labels([0, 1, 2] * 4, names=["a", "b"]), ["row 2", "label 2", "0..1"]),
        (wrong_labels([0] * 11 + [12]), ["label 12", "12 images"]),
        (wrong_labels([0] * 11 + [2**40]), [f"label {2**40}"]),
        (wrong_labels(pa.array([2**63] * 12, pa.uint64())), ["not a readable Parquet file"]),
        (wrong_labels(Y, label="category"), ["no column fine_label or label", "img, category"]),
        (wrong_labels(Y, image="photo"), ["no column img or image", "photo, label"]),
    ],
)
def test_wrong_columns_and_labels(tmp_path, make, mentions):
    make(tmp_path)
    with one_line_error(tmp_path / "train.parquet", *mentions):
        load(str(tmp_path))


@pytest.mark.parametrize("images", [pa.array(["a.png"] * 12), pa.array([{"path": "a.png"}] * 12)])
def test_images_must_be_bytes(tmp_path, images):
    pq.write_table(pa.table({"img": images, "label": Y}), tmp_path / "train.parquet")
    with one_line_error("train.parquet", "column img is", "encoded images are needed"):
        load(str(tmp_path))


def test_an_extension_type_is_refused(tmp_path):
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(X.reshape(12, -1))
    pq.write_table(pa.table({"img": tensor, "label": Y}), tmp_path / "train.parquet")
    with one_line_error("train.parquet", "column img is extension"):
        load(str(tmp_path))


def test_a_row_without_bytes_or_with_a_broken_image_is_named(tmp_path):
    write_parquet(tmp_path / "train-0.parquet", BLOBS, Y)
    for blob, mention in ((None, "no image bytes"), (BLOBS[7][:50], "broken PNG image"), (b"text", "not an image")):
        blobs = [*BLOBS[:7], blob, *BLOBS[8:]]
        write_parquet(tmp_path / "train-1.parquet", blobs, Y, group=5)
        write_parquet(tmp_path / "test.parquet", BLOBS, Y)
        with one_line_error(tmp_path / "train-1.parquet", "row 7", mention):
            load(str(tmp_path))


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "footer", "pages"])
def test_a_corrupt_file_is_named(tmp_path, damage):
    path = write_parquet(tmp_path / "train.parquet", BLOBS * 50, Y * 50)
    content = bytearray(path.read_bytes())
    if damage == "empty":
        content = b""
    elif damage == "text":
        content = b"hello"
    elif damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "footer":
        content[-60:-20] = bytes(40)
    else:
        content[4:200] = bytes(196)
    path.write_bytes(content)
    with one_line_error(path, "not a readable Parquet file"):
        load(str(tmp_path))


def test_a_file_without_rows_is_named(tmp_path):
    path = write_parquet(tmp_path / "train.parquet", [], pa.array([], pa.int64()), struct=False)
    with one_line_error(path, "no rows", "remove the file"):
        load(str(tmp_path))


def test_only_test_files_are_not_enough(tmp_path):
    write_parquet(tmp_path / "test.parquet", BLOBS, Y)
    with one_line_error(tmp_path, "no train*.parquet"):
        load(str(tmp_path))


def test_files_one_folder_too_deep_are_pointed_at(tmp_path):
    write_parquet(tmp_path / "plain_text" / "train.parquet", BLOBS, Y)
    with one_line_error("Parquet files are in", tmp_path / "plain_text"):
        load(str(tmp_path))


def test_what_hugging_face_writes_is_understood(tmp_path):
    """The metadata exactly as `datasets` leaves it for MNIST."""
    features = {"image": {"_type": "Image"}, "label": {"names": ["zero", "one"], "_type": "ClassLabel"}}
    images = [{"bytes": blob, "path": f"{i}.png"} for i, blob in enumerate(BLOBS)]
    table = pa.table({"image": images, "label": [0, 1] * 6})
    file = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})}), file)
    (tmp_path / "train-00000-of-00001.parquet").write_bytes(file.getvalue())
    assert load(str(tmp_path)).class_names == ("zero", "one")
