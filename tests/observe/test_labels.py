"""The label picture: drawn for any number of clients, complete or not at all, from any thread."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from raysim.observe.labels import COLUMNS, arrange, draw_labels


def counts_of(clients, classes):
    return np.random.default_rng(0).geometric(0.05, size=(clients, classes)) // 20


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (1, 2), (5, 10), (30, 100), (201, 3), (10_000, 10)])
def test_draws_any_size(tmp_path, clients, classes):
    from PIL import Image

    path = tmp_path / "labels.png"
    draw_labels(counts_of(clients, classes), [f"class {i}" for i in range(classes)], path)
    assert [file.name for file in tmp_path.iterdir()] == ["labels.png"]
    with Image.open(path) as image:
        assert 400 < image.width < 2000
        assert 300 < image.height < 2000
        assert len(image.getcolors(1_000_000)) > 10


@pytest.mark.parametrize("counts", [np.zeros((3, 2), int), np.full((3, 2), 7), np.array([[10**9, 1]])])
def test_odd_counts(tmp_path, counts):
    draw_labels(counts, ["a", "b"], tmp_path / "labels.png")
    assert (tmp_path / "labels.png").stat().st_size > 1000


def test_class_names_are_text_and_not_formulas(tmp_path):
    names = [r"$\frac{$", "a name that goes on for much longer than there is room", 7]  # the first is a broken formula
    draw_labels(counts_of(3, 3), names, tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize("clients", [200, 201, COLUMNS, COLUMNS + 1, 9_999])
def test_columns_keep_every_sample(clients):
    counts = counts_of(clients, 10)
    shown, group, order = arrange(counts)
    assert sorted(order) == list(range(clients))
    assert len(shown) <= COLUMNS
    members = np.full(len(shown), group)
    members[-1] = clients - group * (len(shown) - 1)
    assert (shown * members[:, None]).sum(axis=0) == pytest.approx(counts.sum(axis=0))
    if clients <= 200:
        assert np.array_equal(shown, counts)


def test_a_failure_leaves_the_old_picture_and_no_rest(tmp_path, monkeypatch):
    path = tmp_path / "labels.png"
    path.write_text("old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        draw_labels(counts_of(3, 3), "abc", path)
    assert [file.name for file in tmp_path.iterdir()] == ["labels.png"]
    assert path.read_text() == "old"


def test_threads_draw_the_same_picture(tmp_path):
    paths = [tmp_path / f"{i}.png" for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda path: draw_labels(counts_of(20, 10), "abcdefghij", path), paths))
    assert len({path.read_bytes() for path in paths}) == 1


def test_importing_it_is_cheap_and_pyplot_is_never_used(tmp_path):
    code = f"""
import pathlib
import sys
from raysim.observe.labels import draw_labels
assert "matplotlib" not in sys.modules
draw_labels([[1, 2], [3, 4]], "ab", pathlib.Path({str(tmp_path / "x.png")!r}))
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
