"""The files of shared synthetic images: a dataset that loaders read, and pairs beside real images."""

import json
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from raysim.cli import main
from raysim.data import load
from raysim.data.federated import Chunks
from raysim.data.normalisation import Normalisation
from raysim.data.synthetic_tables import make_table, table_digest, tables_digest
from raysim.observe.synthetic import SyntheticImages, export, pairs_of, save_pairs

PIXELS = Normalisation((0.0,), (1.0,))  # values are pixels already


def test_a_run_leaves_its_synthetic_images_as_a_dataset_and_a_picture(tmp_path):
    out = tmp_path / "run"
    words = ["--train-size", "120", "--test-size", "40", "--clients", "5", "--rounds", "2", "--model", "small-cnn"]
    words += ["--hfmds.first", "2", "--hfmds.steps", "2", "--hfmds.per-client", "10", "--in-process"]
    assert main(["run", "--method", "hfmds", *words, "--out", str(out)]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert len(summary["synthetic_sha256"]) == 64
    assert 0 < summary["psnr"] < 40
    table = pq.read_table(out / "synthetic.parquet")
    assert table.column_names == ["image", "label", "client", "round", "part"]
    assert set(table["client"].to_pylist()) == set(range(5))
    assert set(table["round"].to_pylist()) == {2}
    assert set(table["part"].to_pylist()) == {"hfmds"}
    assert table.schema.metadata[b"raysim_format"] == b"1"
    with Image.open(out / "synthetic.png") as picture:
        assert picture.width > 500
    assert "Synthetic images beside real ones" in (out / "report.html").read_text()
    # Anybody's loader reads it: here ours, which holds out a test split.
    (tmp_path / "again").mkdir()
    (out / "synthetic.parquet").rename(tmp_path / "again" / "train.parquet")
    again = load(str(tmp_path / "again"))
    assert again.shape == (3, 32, 32)
    assert again.class_names[0] == "disc"
    assert len(again.train.y) + len(again.test.y) == 50


def test_what_several_parts_share_is_all_there(tmp_path):
    first, second = (
        make_table(np.full((n, 1, 1, 1), 5.0, np.float32), np.ones(n, int), np.arange(n), np.full(n, 3)) for n in (2, 1)
    )
    export({"a": first, "b": second}, PIXELS, ["x", "y"], tmp_path / "both.parquet")
    table = pq.read_table(tmp_path / "both.parquet")
    assert table.select(["label", "client", "part"]).to_pydict() == {
        "label": [1, 1, 1], "client": [0, 1, 0], "part": ["a", "a", "b"],
    }  # fmt: skip
    assert tables_digest([]) is None
    assert tables_digest([first]) == table_digest(first)
    assert len({tables_digest(tables) for tables in ([first], [second], [first, second], [second, first])}) == 4


def test_a_pair_is_of_the_client_that_made_it_or_of_another(tmp_path):
    """Client 0 has class 1, client 1 has class 0: made by them, by the server (-1), of no class, of one nobody has."""
    chunk = (np.arange(2, dtype=np.uint8).reshape(2, 1, 1, 1) + 7, np.array([1, 0]))
    clients = Chunks([chunk], np.array([0, 0]), np.array([0, 1]), np.array([1, 2]))
    data = SimpleNamespace(normalisation=PIXELS, sizes=np.array([1, 1]), clients=clients)
    sources = [(1, 0), (0, 0), (0, -1), (-1, 0), (2, 1)]  # label, client
    labels, makers = (np.array(column) for column in zip(*sources, strict=True))
    table = make_table(np.arange(5, dtype=np.float32).reshape(5, 1, 1, 1), labels, makers, np.full(5, 4))
    pairs = pairs_of(table, data)
    assert [(p.label, p.client, p.round, p.real.item(), p.made.item()) for p in pairs] == [
        (0, 0, 4, 8, 1), (0, -1, 4, 8, 2), (1, 0, 4, 7, 0),
    ]  # fmt: skip
    save_pairs(pairs, tmp_path / "pairs.png")
    with Image.open(tmp_path / "pairs.png") as picture:
        assert np.asarray(picture).tolist() == [[8, 8, 7], [1, 2, 0]]
        assert json.loads(picture.text["pairs"]) == [[0, 0, 4], [0, -1, 4], [1, 0, 4]]


def test_a_run_that_shares_nothing_leaves_no_files(tmp_path):
    callback = SyntheticImages(SimpleNamespace(), [])
    callback.on_start({}, tmp_path)
    assert callback.on_result(SimpleNamespace(shared={})) is None
    assert not list(tmp_path.iterdir())
