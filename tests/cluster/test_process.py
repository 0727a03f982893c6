"""The command as a process of its own: its Ray, its exit codes, its end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "RAY_AUTH_MODE"} | {"PYTHONPATH": str(ROOT)}


def raysim(*words: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "raysim", *words]
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def test_a_run_with_its_own_ray_gives_the_in_process_hash(tmp_path):
    small = ["--train-size", "80", "--test-size", "40", "--clients", "4", "--rounds", "2", "--model", "small-cnn"]
    done = raysim("run", *small, "--actors", "2", "--out", "on-ray", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 client actors" in done.stdout
    assert "round 2/2  accuracy" in done.stdout
    assert raysim("run", *small, "--in-process", "--out", "here", cwd=tmp_path).returncode == 0
    hashes = [json.loads((tmp_path / d / "summary.json").read_text())["model_sha256"] for d in ("on-ray", "here")]
    assert hashes[0] == hashes[1]


def test_a_plan_that_cannot_fit_exits_3_in_one_line_and_leaves_nothing(tmp_path):
    done = raysim("run", "--actors", "100000", cwd=tmp_path)
    assert done.returncode == 3
    (line,) = done.stderr.strip().splitlines()
    assert "100000 client actors need about" in line
    assert "works" in line
    assert not list(tmp_path.iterdir())


def test_an_address_where_nobody_is(tmp_path):
    command = [sys.executable, "-m", "raysim", "run", "--rounds", "1"]
    environment = ENVIRONMENT | {"RAY_ADDRESS": "127.0.0.1:9"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    assert "cannot connect to RAY_ADDRESS=127.0.0.1:9" in line
    assert not list(tmp_path.iterdir())


def test_a_killed_run_takes_its_ray_along(tmp_path):
    command = [sys.executable, "-u", "-m", "raysim", "run", "--rounds", "10000", "--train-size", "500", "--out", "run"]
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        next(line for line in process.stdout if line.startswith("round"))
        family = psutil.Process(process.pid).children(recursive=True)
        assert any("ray::DashboardAgent" in " ".join(child.cmdline()) for child in family)
        process.kill()
    _, alive = psutil.wait_procs(family, timeout=40)  # without the reaper Ray's agents stay for 60 s
    assert not alive


def children(process: subprocess.Popen) -> list[psutil.Process]:
    """Those that have not ended in this moment."""
    return [child for child in psutil.Process(process.pid).children(recursive=True) if child.is_running()]


@pytest.mark.parametrize(
    ("kind", "when"),
    [
        pytest.param(signal.SIGINT, "training", marks=pytest.mark.slow),
        (signal.SIGTERM, "training"),
        (signal.SIGINT, "starting"),
    ],
)
def test_an_interrupt_ends_soon_with_130_and_no_process_left(tmp_path, kind, when):
    command = [sys.executable, "-u", "-m", "raysim", "run", "--rounds", "10000", "--train-size", "500", "--out", "run"]
    # In a session of its own, as a terminal would have it: Ctrl-C reaches the whole foreground group.
    with subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        for line in process.stdout:
            if line.startswith("round"):
                break
            if when == "starting" and "overwrite =" in line:  # the last setting; then Ray starts
                while not any(child.name() == "gcs_server" for child in children(process)):
                    time.sleep(0.05)
                break
        family = psutil.Process(process.pid).children(recursive=True)
        assert family
        if kind == signal.SIGINT:
            os.killpg(process.pid, kind)
        else:
            process.send_signal(kind)
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()  # one that hangs would keep this test waiting
    assert process.returncode == 130
    assert errors.strip().splitlines()[-1].startswith("raysim: interrupted")
    _, alive = psutil.wait_procs(family, timeout=40)
    assert not alive
    assert (tmp_path / "run" / "metrics.jsonl").exists() == (when == "training")
