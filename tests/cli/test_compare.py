"""`compare` and `sweep` as a user calls them: real processes, on a Ray of their own where it matters."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from raysim.cli import main

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "RAY_AUTH_MODE"} | {"PYTHONPATH": str(ROOT)}
TINY = ["--train-size", "40", "--test-size", "20", "--clients", "4", "--rounds", "2", "--model", "mlp"]


def raysim(*words, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "raysim", *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def summary(path: Path) -> dict:
    return json.loads((path / "summary.json").read_text())


@pytest.mark.slow
def test_a_failed_run_is_named_the_others_go_on_and_the_same_command_tries_it_again(tmp_path):
    (tmp_path / "fuses").mkdir()
    (tmp_path / "fuses" / "one").touch()
    words = ["compare", "--methods", "tests.parts.doomed", "fedavg", *TINY, "--in-process", "--out", "many"]
    words += ["--doomed.how", "raises", "--doomed.fuses", str(tmp_path / "fuses"), "--on-client-error", "stop"]
    done = raysim(*words, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip() == "raysim: 1 of 2 runs failed; the same command again tries only them"
    failed, well = tmp_path / "many" / "tests.parts.doomed-seed-0", tmp_path / "many" / "fedavg-seed-0"
    assert "client 3 failed in round 2" in done.stdout
    assert str(failed / "log.txt") in (tmp_path / "many" / "table.md").read_text()
    first = (well / "summary.json").read_bytes()
    assert not (failed / "summary.json").exists()

    again = raysim(*words, cwd=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert "going on after round 1" in (failed / "log.txt").read_text()
    assert (well / "summary.json").read_bytes() == first
    assert summary(failed)["model_sha256"] == summary(well)["model_sha256"]  # it adds nothing when all is well

    table = json.loads((tmp_path / "many" / "table.json").read_text())
    assert [row["row"] for row in table["rows"]] == ["tests.parts.doomed", "fedavg"]
    assert table["rows"][1]["final_accuracy"] == {"mean": 100 * summary(well)["final_accuracy"], "std": None}
    assert table["failed"] == {}
    with open(tmp_path / "many" / "table.csv") as file:
        (_, line) = csv.DictReader(file)
    assert float(line["megabytes_up_mean"]) == pytest.approx(summary(well)["bytes_up"] / 1e6)
    # Other settings in the same place are refused, and finished runs are not done again.
    assert main([*words[:-5], "--out", str(tmp_path / "many"), "--lr", "0.5", "--in-process", *words[-4:-2]]) == 2
    assert main(["compare", "--methods", "fedavg", *TINY, "--out", str(tmp_path / "many"), "--overwrite"]) == 2


@pytest.mark.slow
def test_two_at_once_on_one_ray_have_the_hashes_they_have_alone(tmp_path):
    """One actor each on 2 logical CPUs: `sweep` is the same machinery."""
    done = raysim("sweep", "--over", "seed=0,1", *TINY, "--method", "fedprox", "--out", "many", cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    for seed in (0, 1):
        out = tmp_path / f"alone{seed}"
        assert main(["run", "--method", "fedprox", *TINY, "--seed", str(seed), "--in-process", "--out", str(out)]) == 0
        found = tmp_path / "many" / f"seed={seed}-seed-{seed}"
        assert summary(found)["model_sha256"] == summary(out)["model_sha256"]


@pytest.mark.parametrize("where", ["in-process", pytest.param("on-ray", marks=pytest.mark.slow)])
def test_an_interrupt_ends_every_run_with_130_and_the_same_command_goes_on(tmp_path, where):
    words = ["compare", "--methods", "fedavg", "fedprox", *TINY, "--rounds", "150", "--out", "many"]
    words += ["--in-process"] if where == "in-process" else []
    process = subprocess.Popen(
        [sys.executable, "-m", "raysim", *words], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    runs = [tmp_path / "many" / f"{method}-seed-0" for method in ("fedavg", "fedprox")]
    while not any((run / "metrics.jsonl").exists() for run in runs) and process.poll() is None:
        time.sleep(0.02)
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors.strip() == "raysim: interrupted; the same command again goes on"
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive
    assert not all((run / "summary.json").exists() for run in runs)

    done = raysim(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    out = tmp_path / "alone"
    assert main(["run", *TINY, "--rounds", "150", "--in-process", "--out", str(out)]) == 0
    assert summary(runs[0])["model_sha256"] == summary(out)["model_sha256"]


@pytest.mark.parametrize("where", ["in-process", pytest.param("on-ray", marks=pytest.mark.slow)])
def test_the_runs_of_a_killed_grid_die_with_it_and_the_same_command_goes_on(tmp_path, where):
    words = ["compare", "--methods", "fedavg", "fedprox", *TINY, "--rounds", "60", "--out", "many"]
    words += ["--in-process"] if where == "in-process" else []
    process = subprocess.Popen([sys.executable, "-m", "raysim", *words], cwd=tmp_path, env=ENVIRONMENT)
    runs = [tmp_path / "many" / f"{method}-seed-0" for method in ("fedavg", "fedprox")]
    while not any((run / "metrics.jsonl").exists() for run in runs) and process.poll() is None:
        time.sleep(0.02)
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = raysim(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive
    for run, method in zip(runs, ("fedavg", "fedprox"), strict=True):
        assert summary(run)["rounds"] == 60, method
