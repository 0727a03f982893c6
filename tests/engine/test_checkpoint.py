"""Checkpoints come back bit for bit or not at all: whatever was cut, flipped or missing."""

import json

import numpy as np
import pytest

from raysim.engine.checkpoint import Checkpoints, pack, unpack
from raysim.engine.shared import make_table, table_digest
from raysim.errors import RaysimError

IDENTITY = {"settings": {"seed": 1}, "data": "abc"}


def tree(t: int) -> dict:
    weights = [np.arange(6, dtype=np.float32) + t]
    return {"weights": weights, "state": {"fedpa": {"step": np.array(3.0 * t), "n": 4, "none": None, "l": [1]}}}


def table(t: int):
    images = np.full((3, 1, 4, 4), t, dtype=np.float32)
    return make_table(images, np.arange(3), np.zeros(3, np.int64), np.full(3, t))


@pytest.fixture
def saved(tmp_path):
    """Three rounds: client 1 changes in the first, 2 in the second; the dataset is of the second."""
    checkpoints = Checkpoints(tmp_path / "c", IDENTITY)
    checkpoints.save(1, tree(1), {1: {"p": {"w": np.ones(2)}}}, {})
    checkpoints.save(2, tree(2), {2: {"p": {"w": np.zeros((0, 3))}}}, {"hfmds": (2, table(2))})
    checkpoints.save(3, tree(3), {}, {"hfmds": (2, table(2))})
    return tmp_path / "c"


def same(found, t: int) -> bool:
    expected: dict = {}
    got: dict = {}
    structure = pack(tree(t), expected, "x"), pack(found.server, got, "x")
    return structure[0] == structure[1] and all(np.array_equal(expected[k], got[k]) for k in expected)


def test_everything_comes_back_and_what_did_not_change_is_not_written_again(saved):
    names = sorted(path.name for path in saved.iterdir())
    assert names == [
        "round-00002.json", "round-00003.json", "server-00002.safetensors", "server-00003.safetensors",
        "shared-hfmds-00002.arrow", "states-00001.safetensors", "states-00002.safetensors",
    ]  # fmt: skip
    found = Checkpoints(saved, IDENTITY).load()
    assert found.round == 3
    assert same(found, 3)
    states = dict(pair for batch in found.states for pair in batch)
    assert np.array_equal(states[1]["p"]["w"], np.ones(2))
    assert states[2]["p"]["w"].shape == (0, 3)
    made, shared = found.shared["hfmds"]
    assert made == 2
    assert table_digest(shared) == table_digest(table(2))


def test_a_run_goes_on_saving_from_what_it_loaded(saved):
    checkpoints = Checkpoints(saved, IDENTITY)
    checkpoints.load()
    checkpoints.save(4, tree(4), {1: {"p": {"w": np.full(2, 7.0)}}}, {"hfmds": (2, table(2))})
    found = Checkpoints(saved, IDENTITY).load()
    states = dict(pair for batch in found.states for pair in batch)
    assert found.round == 4
    assert np.array_equal(states[1]["p"]["w"], np.full(2, 7.0))
    assert 2 in states


@pytest.mark.parametrize("name", ["round-00003.json", "server-00003.safetensors"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
def test_a_damaged_one_is_named_and_the_one_before_is_used(saved, name, damage):
    path = saved / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"flip": content, "cut": content[: len(content) // 2], "empty": b""}[damage])
    refused = []
    found = Checkpoints(saved, IDENTITY).load(refused.append)
    assert found.round == 2
    assert same(found, 2)
    if name != "round-00003.json" or damage != "gone":  # without its manifest there is nothing to refuse
        assert len(refused) == 1
        assert "round-00003.json" in refused[0]


@pytest.mark.parametrize("name", ["states-00001.safetensors", "shared-hfmds-00002.arrow"])
def test_damage_in_what_both_need_leaves_none(saved, name):
    content = bytearray((saved / name).read_bytes())
    content[-1] ^= 1
    (saved / name).write_bytes(content)
    refused = []
    assert Checkpoints(saved, IDENTITY).load(refused.append) is None
    assert len(refused) == 2
    assert all(name in reason for reason in refused)


def test_every_single_byte_of_a_manifest_counts(saved):
    whole = (saved / "round-00003.json").read_bytes()
    for i in range(0, len(whole) - 1, 7):  # the last is a line's end
        (saved / "round-00003.json").write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        assert Checkpoints(saved, IDENTITY).load().round == 2


def test_leftovers_of_a_killed_write_do_no_harm_and_go(saved):
    (saved / ".server-00004.safetensors.tmp").write_bytes(b"half")
    (saved / "server-00004.safetensors").write_bytes(b"whole, but its manifest was never written")
    checkpoints = Checkpoints(saved, IDENTITY)
    assert checkpoints.load().round == 3
    checkpoints.save(4, tree(4), {}, {"hfmds": (2, table(2))})
    assert Checkpoints(saved, IDENTITY).load().round == 4
    assert not list(saved.glob(".*"))


def test_another_runs_checkpoint_is_refused_by_name(saved):
    with pytest.raises(RaysimError, match=r"round-00003.json was made with another data"):
        Checkpoints(saved, IDENTITY | {"data": "other"}).load()


def test_trees_keep_their_shape():
    tensors: dict = {}
    packed = pack({"a": [np.array(1.5), {"b": 2}], "c": (True, "x")}, tensors, "at")
    assert unpack(json.loads(json.dumps(packed)), tensors) == {"a": [1.5, {"b": 2}], "c": [True, "x"]}
    assert tensors["at/a/0"].shape == ()
