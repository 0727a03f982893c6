"""What `raysim doctor` says of devices: right, repeatable, and alike where they are of one kind."""

from dataclasses import replace

import numpy as np
import pytest

from raysim.cli import main
from raysim.engine import self_test

GOOD = self_test.Examined("node1", "0", {"device": "A100"}, {}, "aaaa1111", repeats=True, apart=1e-6, seconds=1.0)


def test_the_training_repeats_itself_and_learns_something():
    found = self_test.examine("0123456789", None)
    assert found.repeats
    assert found.apart == 0  # it is the CPU's own
    assert found.fingerprint["device"] == "cpu"
    assert found.name == "node 01234567"


def test_good_devices_have_no_faults():
    other_kind = replace(GOOD, gpu="2", fingerprint={"device": "H100"}, sha256="bbbb")
    assert self_test.faults([GOOD, replace(GOOD, gpu="1"), other_kind]) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"repeats": False}, "GPU 1 of node node1: the same training gave different bits"),
        ({"apart": 0.5}, "GPU 1 of node node1: its training is 5.0e-01 of the update off"),
        ({"apart": np.nan}, "off the CPU's; do not use it"),
        ({"sha256": "cccc2222"}, "devices of one kind disagree in the last bits: GPU 0 of node node1 aaaa1111, GPU 1"),
    ],
)
def test_faults_are_named(wrong, words):
    (line,) = self_test.faults([GOOD, replace(GOOD, gpu="1", **wrong)])
    assert words in line


@pytest.mark.slow  # it starts a Ray
def test_the_command(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "self-test" in said
    assert "everything promised holds here" in said


def test_it_takes_no_settings(capsys):
    assert main(["doctor", "--seed", "1"]) == 2
