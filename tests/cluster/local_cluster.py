"""What the tests of cluster/local.sh share: starting and stopping it as a user does, and finding its processes."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("RAY")}
ENVIRONMENT["PATH"] = f"{Path(sys.executable).parent}:{ENVIRONMENT['PATH']}"
PATIENT = {"RAYSIM_START_SECONDS": "200"}  # a loaded machine is no fault; within pytest's own limit


def call(*words: str, **environment: str) -> subprocess.CompletedProcess:
    """A command as a user gives it; what it says is returned."""
    return subprocess.run(
        words, cwd=ROOT, env=PATIENT | ENVIRONMENT | environment, capture_output=True, text=True, check=False
    )  # fmt: skip


def owned(state: Path) -> list[psutil.Process]:
    """The processes that were started for this cluster, whatever they call themselves."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("RAYSIM_OWNER") == str(state) or f"{state}/ray" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


class Cluster:
    """A cluster of a module's tests, by the variables it says to export; without it they say why they are not run."""

    def __init__(self, variables: dict[str, str], problem: str):
        self.variables, self.problem, self.told = variables, problem, False

    def needed(self) -> dict[str, str]:
        """The variables. The first test that needs a cluster that is not there fails, and the others are skipped."""
        if self.problem and not self.told:
            self.told = True
            pytest.fail(f"there is no cluster: {self.problem}", pytrace=False)
        if self.problem:
            pytest.skip(f"there is no cluster: {self.problem}")
        return self.variables


@contextmanager
def cluster(state: Path, *options: str) -> Iterator[Cluster]:
    """`cluster/local.sh start` with these options, for as long as this lasts, and however it ends."""
    try:
        done = call("cluster/local.sh", "start", *options, RAYSIM_CLUSTER=str(state))
        exports = [line for line in done.stdout.splitlines() if not line.startswith("#")]
        problem = "" if done.returncode == 0 else " / ".join(done.stderr.splitlines()) or f"code {done.returncode}"
        yield Cluster(dict(re.findall(r"(\w+)=(\S+)", " ".join(exports))), problem)
    finally:
        call("cluster/local.sh", "stop", RAYSIM_CLUSTER=str(state))
