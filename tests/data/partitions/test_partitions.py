"""What holds for all partitions, and how they are found by name."""

import subprocess
import sys
import time

import numpy as np
import pytest

from raysim.config import RunConfig, resolve
from raysim.data import partitions
from raysim.errors import InputError
from raysim.settings import setting_fields
from tests.data.dealing import partition

from .common import balanced, check

KIND_ARGUMENTS = [
    {"kind": "iid"},
    {"kind": "dirichlet", "beta": 0.1},
    {"kind": "classes", "classes_per_client": 3},
    {"kind": "table", "table": np.full((20, 10), 2)},
]


@pytest.mark.parametrize("arguments", KIND_ARGUMENTS, ids=lambda a: a["kind"])
def test_same_seed_same_partition(arguments):
    labels = balanced(10, 50)
    first, again, other = (partition(labels, 10, clients=20, seed=seed, **arguments) for seed in (5, 5, 6))
    assert np.array_equal(first.order, again.order)
    assert np.array_equal(first.offsets, again.offsets)
    assert not np.array_equal(first.order, other.order)


@pytest.mark.parametrize(
    ("clients", "arguments"),
    [
        (10_000, {"kind": "dirichlet", "beta": 0.001}),
        (10_000, {"kind": "classes", "classes_per_client": 10}),
        (1000, {"kind": "classes", "classes_per_client": 99}),
        (100_000, {"kind": "iid"}),
    ],
)
def test_large_partitions_are_fast(clients, arguments):
    labels = balanced(100, 2000)
    start = time.process_time()
    parts = partition(labels, 100, clients=clients, seed=0, **arguments)
    assert time.process_time() - start < 2
    check(parts, labels, clients)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "random"}, "unknown kind 'random'; choose one of iid"),
        ({"clients": 0}, "at least 1"),
        ({"clients": 101}, "101 clients but only 100 training samples"),
        ({"classes": 9}, "labels go from 0 to 9, but there are 9 classes"),
        ({"kind": "dirichlet", "beta": 0}, "beta 0; give a finite number above 0"),
        ({"kind": "dirichlet", "beta": -1.0}, "above 0"),
        ({"kind": "dirichlet", "beta": float("nan")}, "finite"),
        ({"kind": "dirichlet", "beta": float("inf")}, "finite"),
        ({"kind": "classes", "classes_per_client": 0}, "ask for 1 to 10"),
        ({"kind": "classes", "classes_per_client": 11}, "11 classes per client of 10 classes"),
        ({"kind": "classes", "clients": 60}, "class 0 has 10 samples for 12 clients; use fewer clients"),
        ({"kind": "table"}, "without a table"),
        ({"kind": "table", "table": "covid19"}, "6 rows for 5 clients"),
        ({"kind": "table", "table": np.ones((5, 3), int)}, "3 columns for 10 classes"),
        ({"kind": "table", "table": np.full((5, 10), 3)}, "class 0 has 10 samples, the table asks for 15"),
        ({"kind": "table", "table": np.full((5, 10), 2**62)}, "the table asks for"),
        ({"kind": "table", "table": np.zeros((5, 10), int)}, "client 0 has no sample"),
        ({"kind": "table", "table": np.full((5, 10), -1)}, "client 0, class 0 has -1"),
        ({"kind": "table", "table": np.ones((5, 10))}, "not a table of integers"),
        ({"kind": "table", "table": [[1, 2], [3]]}, "not a table of integers"),
    ],
)
def test_wrong_input_is_one_clear_line(changes, message):
    arguments = {"classes": 10, "kind": "iid", "clients": 5, "seed": 0} | changes
    with pytest.raises(InputError, match=message) as caught:
        partition(balanced(10, 10), **arguments)
    assert "\n" not in str(caught.value)


def test_no_torch_is_imported():
    code = "import sys, raysim.data.partitions, raysim.data.federated_writer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_they_are_found_by_their_files():
    assert partitions.names() == ("iid", "classes", "column", "dirichlet", "table")
    assert all(partitions.describe(name).endswith(".") for name in partitions.names())
    assert [partitions.partition_class(name)().name for name in partitions.names()] == [*partitions.names()]


def test_their_settings_are_settings_of_every_run():
    own = partitions.own_settings()
    assert [*own] == ["classes_per_client", "client_column", "beta", "min_samples", "quota", "table"]
    assert own.keys() <= resolve([]).settings().keys()
    declared = [name for cls in RunConfig.__mro__ for name in vars(cls).get("__annotations__", {})]
    assert all(declared.count(name) == 1 for name in own)  # no other setting of a run has that name
    assert all(setting_fields(RunConfig)[name].metadata == field.metadata for name, field in own.items())


def test_the_settings_choose_one():
    assert resolve([("test", {"partition": "classes", "classes_per_client": 3})]).partitioner().label() == "classes 3"
    older = {"partition": "dirichlet", "another": 1}  # written before the setting existed
    assert partitions.from_settings(older).label() == "dirichlet 0.5"


def test_short_forms():
    assert partitions.short_forms() == ["iid", "classes:2", "column:writer", "dirichlet:0.1", "table:FILE"]
    assert partitions.parse("iid") == ("iid", {"partition": "iid"})
    assert partitions.parse("table:a:b.csv") == ("table a:b.csv", {"partition": "table", "table": "a:b.csv"})
    forms = ", ".join(partitions.short_forms())
    for wrong in ("iid:2", "classes", "classes:", "magic:1", "base:1", ""):
        with pytest.raises(InputError, match=f"--partitions: '{wrong}' is none of {forms}"):
            partitions.parse(wrong)
