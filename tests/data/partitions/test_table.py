"""A table is followed exactly, and a wrong one is one clear line."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.config import resolve
from raysim.data.partitions.table import TABLES, Table, read_table
from raysim.errors import InputError
from tests.data.dealing import partition

from .common import quick, seeds


@quick
@given(clients=st.integers(1, 40), classes=st.integers(1, 8), seed=seeds)
def test_table_is_followed_exactly(clients, classes, seed):
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 6, size=(clients, classes))
    table[:, 0] += 1
    spare = rng.integers(0, 4, size=classes)
    labels = rng.permutation(np.repeat(np.arange(classes), table.sum(axis=0) + spare))
    parts = partition(labels, classes, kind="table", clients=clients, seed=seed, table=table)
    assert np.array_equal(parts.counts(labels, classes), table)
    assert len(np.unique(parts.order)) == len(parts.order)
    assert bool(parts.notes) == bool(spare.sum())


def test_the_covid19_table_by_name():
    labels = np.repeat(np.arange(3), [8000, 3000, 1000])
    parts = partition(labels, 3, kind="table", clients=6, seed=0, table="covid19")
    assert np.array_equal(parts.counts(labels, 3), read_table("covid19"))
    assert parts.sizes.tolist() == [2750, 1000, 2250] * 2
    assert parts.notes == ()


def test_the_same_images_dealt_evenly():
    table, even = read_table("covid19"), read_table("covid19-iid")
    assert table.sum(0).tolist() == even.sum(0).tolist() == [8000, 3000, 1000]
    assert np.ptp(even, axis=0).max() <= 1


def test_read_table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("1, 2, 0\r\n\r\n0,0,7\n")
    assert read_table(path).tolist() == [[1, 2, 0], [0, 0, 7]]
    assert read_table(str(path)).dtype == np.int64
    assert read_table("covid19").tolist() == [list(row) for row in TABLES["covid19"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"a,b\n1,2\n", "line 1: not integers"),
        (b"1,2\n1,2.5\n", "line 2: not integers"),
        (b"1,99999999999999999999\n", "line 1: not integers"),
        (b"1,2\n1\n", "line 2: 1 columns, before it 2"),
        (b"1,-2\n", "client 0, class 1 has -2"),
        (b"1,2\n0,0\n", "client 1 has no sample"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b'"1\n' + b"1" * 200_000, "cannot be read"),
    ],
)
def test_a_wrong_table_file_is_one_clear_line(tmp_path, content, message):
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_table(path)
    assert "table.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["missing.csv", ".", "x" * 5000])
def test_a_missing_table_file(tmp_path, name):
    with pytest.raises(InputError, match=r"no such file|cannot be read"):
        read_table(tmp_path / name)


@pytest.mark.parametrize("settings", [{"partition": "table"}, {"partition": "iid", "table": "covid19"}])
def test_the_partition_and_its_table_go_together(settings):
    with pytest.raises(InputError, match=r"--partition table goes with --table FILE"):
        resolve([("test", settings)])


def test_a_missing_file_is_reported_before_any_data_is_loaded():
    with pytest.raises(InputError, match=r"partition table nowhere.csv: no such file"):
        resolve([("test", {"partition": "table", "table": "nowhere.csv"})])


def test_names():
    assert Table("covid19").label() == Table("covid19").words() == "table covid19"
