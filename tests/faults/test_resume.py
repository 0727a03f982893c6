"""A run that is killed goes on with `resume` and ends as if nothing had happened."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raysim.cli import main
from raysim.config import resolve
from raysim.errors import InputError
from raysim.storage.run_directory import run_directory
from tests.faults.harness import ROOT, results

SETTINGS = [
    "--method", "hfmds+fedpa", "--hfmds.layer", "features", "--hfmds.every", "2", "--hfmds.first", "2",
    "--hfmds.steps", "2", "--hfmds.per-client", "5", "--fedpa.gen-steps", "5",
    "--model", "mlp", "--clients", "8", "--active", "4", "--rounds", "6",
    "--train-size", "200", "--test-size", "100", "--image-size", "16", "--in-process",
]  # fmt: skip


def raysim(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "raysim", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    assert raysim("run", *SETTINGS, "--out", str(out)).returncode == 0
    return out


def kill_after(rounds: int, out: Path, *words: str) -> None:
    """Start it and send SIGKILL as soon as so many rounds are told."""
    with subprocess.Popen([sys.executable, "-m", "raysim", *words], cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        metrics = out / "metrics.jsonl"
        while process.poll() is None and (not metrics.exists() or metrics.read_text().count("\n") < rounds):
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -9


def test_killed_twice_and_resumed(undisturbed, tmp_path):
    out = tmp_path / "run"
    kill_after(2, out, "run", *SETTINGS, "--out", str(out))
    kill_after(4, out, "resume", str(out))
    done = raysim("resume", str(out))
    assert done.returncode == 0, done.stderr
    assert "going on after round" in done.stdout
    assert results(out) == results(undisturbed)
    assert "nothing to go on with" in raysim("resume", str(out)).stdout


def test_a_job_submitted_again_with_resume_starts_where_there_is_nothing_and_goes_on_where_there_is(
    undisturbed, tmp_path
):
    out = tmp_path / "run"
    words = ["run", *SETTINGS, "--out", str(out), "--resume"]
    kill_after(3, out, *words)
    assert raysim(*words).returncode == 0
    assert results(out) == results(undisturbed)


@pytest.mark.parametrize("method", ["scaffold", "moon", "fedgen", "fedensemble", "fedhkd", "fedmix"])
def test_what_a_method_keeps_is_in_its_checkpoints(method, tmp_path):
    """The last round is taken back and done again."""
    whole, again = tmp_path / "whole", tmp_path / "again"
    common = SETTINGS[SETTINGS.index("--model") :]
    assert main(["run", "--method", method, *common, "--rounds", "3", "--out", str(whole)]) == 0
    shutil.copytree(whole, again)
    (again / "checkpoints" / "round-00003.json").unlink()
    (again / "summary.json").unlink()
    assert main(["resume", str(again)]) == 0
    assert '"resumed", "round": 2' in (again / "events.jsonl").read_text()
    assert results(again) == results(whole)


def test_resuming_with_other_settings_is_refused(undisturbed):
    done = raysim("resume", str(undisturbed), "--lr", "0.5")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "has --lr 0.01, not 0.5" in done.stderr


def test_a_run_killed_while_it_started_can_be_started_again(tmp_path):
    (tmp_path / "events.jsonl").touch()
    config = resolve([("test", {"resume": True, "out": str(tmp_path)})])
    assert run_directory(config) == tmp_path
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match="exists; choose another"):
        run_directory(config)
