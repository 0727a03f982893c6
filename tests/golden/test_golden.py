"""The golden runs: hashes where this machine's arithmetic is that of a golden file, and figures everywhere."""

import json
import os
import platform
import subprocess
import sys
from itertools import permutations

import pytest
import torch

from tests import golden
from tests.golden import FOLDER, apart, differences, ended, figures, runs

RUNS = runs()
FILES = {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_ends_as_its_golden_one(name):
    if not all(name in file["hashes"] for file in FILES.values()):
        pytest.fail(f"{name} has no golden hashes; `make golden` adds them")
    assert differences(name, ended(RUNS[name])) == []


@pytest.mark.parametrize("file", FILES)
def test_no_golden_run_is_of_a_method_that_is_gone(file):
    assert sorted(FILES[file]["hashes"]) == sorted(FILES[file]["figures"]) == sorted(RUNS)


def test_a_golden_file_is_named_by_its_fingerprint():
    assert {name: golden.path_of(file["device"]).name for name, file in FILES.items()} == {name: name for name in FILES}


# -- where there is no golden file -------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(monkeypatch):
    """Another machine's arithmetic."""
    golden.golden.cache_clear()
    monkeypatch.setattr(golden, "device", lambda: {"device": "cpu", "loops": "others"})
    yield
    golden.golden.cache_clear()


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "scaffold --fuse 3", "hfmds"])
def test_elsewhere_figures_are_compared_and_nearly_right_is_wrong(elsewhere, name):
    assert golden.golden(exact=True) is None
    assert differences(name, ended(RUNS[name])) == []
    assert differences(name, ended(RUNS[name] | {"lr": 1.01 * RUNS[name]["lr"]})) != []


def test_no_method_passes_for_another():
    """But for fedyogi as fedadam: in the second round their steps are still nearly the same."""
    for file in FILES.values():
        for name, other in permutations(RUNS, 2):
            alike = {n.partition(" --fuse")[0] for n in (name, other)}
            if len(alike) > 1 and alike != {"fedadam", "fedyogi"}:
                assert apart(file["figures"][name], file["figures"][other]), (name, other)


def in_other_arithmetic(code: str, **variables: str) -> str:
    """What Python prints with these variables of the environment."""
    environment = os.environ | variables
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


OTHER_LOOPS = {"ATEN_CPU_CAPABILITY": "default"}


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="there are no simpler kernels")
def test_with_simpler_kernels_bits_are_others_and_figures_are_not():
    names = ["fedavg", "fedbn on fedpa-cnn", "fedpa", "feddpms"]
    code = f"""
from tests.golden import *
for name in {names}:
    result = ended(runs()[name])
    known = golden(exact=False)
    print(golden(exact=True) is None, hashes(result) != known["hashes"][name], differences(name, result))
"""
    assert in_other_arithmetic(code, **OTHER_LOOPS).splitlines() == ["True True []"] * len(names)


def test_figures_are_those_of_the_last_round():
    result = ended(RUNS["fedprox"])
    last = result.history[-1]
    expected = {"accuracy": last.accuracy, "loss": last.loss, "train_loss": last.train_loss}
    assert figures(result) == expected | {"terms/fedprox": last.terms["fedprox"]}


# -- what is in the fingerprint ----------------------------------------------------------------------------------------

PRINT = "import json; from tests.golden import device; print(json.dumps(device()))"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are variables of x86")
@pytest.mark.parametrize(
    ("variables", "changed"),
    [
        (OTHER_LOOPS, {"cpu", "loops"}),
        ({"ONEDNN_MAX_CPU_ISA": "SSE41"}, {"convolutions"}),
        ({"MKL_CBWR": "COMPATIBLE"}, {"products"}),
        ({"ONEDNN_VERBOSE_TIMESTAMP": "1"}, set()),
    ],
)
def test_each_library_has_its_piece_of_the_fingerprint(variables, changed):
    here, there = (json.loads(in_other_arithmetic(PRINT, **each)) for each in ({}, variables))
    assert {key for key in here if here[key] != there[key]} == changed
