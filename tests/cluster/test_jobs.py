"""The job file as users submit it, on a head of its own that is gone afterwards."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
TINY = ["--train-size", "200", "--test-size", "50", "--clients", "10", "--active", "4", "--rounds", "2"]


def processes_of(marker: str) -> list[str]:
    return [" ".join(p.info["cmdline"] or [])[:120] for p in psutil.process_iter(["cmdline"]) if marker in str(p.info)]


@pytest.mark.parametrize(
    "submit",
    [
        ["--", "jobs/fedavg_100clients.py"],
        ["--working-dir", ".", "--", "python", "jobs/hfmds_100clients.py", "--hfmds.every", "2", "--hfmds.steps", "2"],
    ],
    ids=["from the repository", "uploaded"],
)
@pytest.mark.slow
def test_the_job_runs_and_leaves_nothing_running(submit, tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"HOME": str(tmp_path)}
    out = ["--out", str(tmp_path / "run")] if submit[0] == "--" else ["--out", "run"]  # uploaded: relative to home
    done = subprocess.run(
        ["cluster/one_job.sh", str(Path(sys.executable).parent), *submit, *TINY, *out],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"round 2/2  accuracy +\d+\.\d\d %", done.stdout)
    assert f"report: {tmp_path / 'run' / 'report.html'}" in done.stdout
    assert (tmp_path / "run" / "summary.json").exists()
    if "hfmds" in str(submit):
        assert re.search(r"side by side after 2 rounds, .*: hfmds\+fedpa \d+\.\d\d %, fedavg \d+\.\d\d %", done.stdout)
        assert (tmp_path / "run" / "synthetic.parquet").exists()
        assert (tmp_path / "run-fedavg" / "summary.json").exists()
    state = re.search(r"token: (\S+)/token", done.stdout).group(1)
    assert not processes_of(state)
    assert not Path(state).exists()


def test_a_wrong_flag_fails_the_job_with_the_one_line():
    done = subprocess.run(
        [sys.executable, "jobs/fedavg_100clients.py", "--roundz", "3"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.strip() == "raysim: command line: unknown setting --roundz; did you mean '--rounds'?"
