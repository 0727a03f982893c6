"""Run directories as raysim writes them, made once for the tests of a process: one finished, one interrupted."""

import shutil
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import pytest

from raysim.cli import main
from raysim.engine.simulation import Simulation

WORDS = [
    "run", "--in-process", "--method", "hfmds+fedpa", "--rounds", "4", "--clients", "5", "--active", "4",
    "--train-size", "60", "--test-size", "30", "--partition", "classes", "--model", "small-cnn", "--batch-size", "5",
    "--privacy", "20", "--seed", "1", "--hfmds.every", "2", "--hfmds.first", "2", "--hfmds.steps", "2",
    "--hfmds.per-client", "2", "--hfmds.levels", "0", "--fedpa.gen-steps", "3",
]  # fmt: skip


@cache
def _root() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()  # removed when the process ends


@cache
def finished() -> Path:
    """The directory of a run of four rounds, which nobody may change."""
    folder = Path(_root().name) / "finished"
    assert _quietly([*WORDS, "--out", str(folder)]) == 0
    return folder


@cache
def interrupted() -> Path:
    """The directory of the same run, ended after two rounds, which nobody may change."""
    folder, real = Path(_root().name) / "interrupted", Simulation.round

    def round(self, t):
        if t == 3:
            raise KeyboardInterrupt
        return real(self, t)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulation, "round", round)
        assert _quietly([*WORDS, "--out", str(folder)]) == 130
    return folder


def _quietly(words: list[str]) -> int:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):  # else a test would capture it
        return main(words)


def copied(made: Path, folder: Path) -> Path:
    """Copy one of them."""
    shutil.copytree(made, folder)
    return folder
