"""The parts' server state in a run directory: it is what the run ended with."""

import numpy as np
import pytest
from safetensors.numpy import save_file

import raysim
from raysim.engine.digest import digest
from raysim.errors import InputError
from raysim.state import OwnArray
from raysim.storage.server_state import FILE, read_state, write_state

TINY = {
    "model": "small-cnn", "clients": 4, "train_size": 120, "test_size": 40, "rounds": 2, "privacy": 0, "metrics": False,
    "in_process": True, "progress": False,
}  # fmt: skip


def test_a_run_keeps_its_parts_server_state(tmp_path):
    run = raysim.run(method="fedpa+fedadam", **{"fedpa.gen_steps": 2}, **TINY, out=tmp_path / "run")
    state = read_state(run.path)
    assert state.keys() == {"fedpa", "fedadam"}
    assert state["fedpa"].keys() >= {"generator", "adam", "counts", "prototypes", "known"}
    assert digest([state]) == run.summary["server_state_sha256"]


def test_a_run_whose_parts_keep_nothing_has_no_such_file(tmp_path):
    run = raysim.run(method="fedprox", **TINY, out=tmp_path / "run")
    assert not (run.path / FILE).exists()
    assert read_state(run.path) == {}


def test_nested_state_comes_back(tmp_path):
    state = {"part": {"values": [np.arange(3), {"deep": np.float64(0.5)}], "steps": 7, "name": None}, "other": {}}
    state["part"]["own"] = (OwnArray(np.arange(2)), {1: "one"})
    write_state(tmp_path, state)
    found = read_state(tmp_path)
    assert found["part"]["values"][0].tolist() == [0, 1, 2]
    assert found["part"]["values"][1]["deep"] == 0.5
    assert found["part"]["steps"] == 7
    assert found["part"]["name"] is None
    assert found["part"]["own"][0].tolist() == [0, 1]
    assert found["part"]["own"][1] == {1: "one"}
    assert found["other"] == {}


@pytest.mark.parametrize("tree", [None, "{", "[]", '{"part": 3}', '{"part": {"values": {"tensor": "gone"}}}'])
def test_a_damaged_file_is_named(tmp_path, tree):
    save_file({"values": np.arange(3)}, tmp_path / FILE, metadata={"tree": tree} if tree else None)
    with pytest.raises(InputError, match=f"{FILE} is damaged"):
        read_state(tmp_path)
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes()[:-3])
    with pytest.raises(InputError, match=f"{FILE} is damaged"):
        read_state(tmp_path)
