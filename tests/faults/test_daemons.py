"""A process of a run's own Ray dies, or all of them get a signal: one line of ours says so, and the run can go on."""

import os
import random
import re
import shutil
import signal
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tests.faults.harness import GRACE, SMALL, Lab, Outcome, crash, descendants, told

pytestmark = pytest.mark.slow  # each is a run that is killed, looked at and resumed

TINY = [*SMALL, "--rounds", 5, "--local-epochs", 40]  # a round takes about a second
NAMES = {
    "raylet": r"^raylet", "GCS": r"^gcs_server", "dashboard agent": r"^ray::DashboardAgent",
    "runtime-env agent": r"^ray::RuntimeEnvAgent",
}  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    return Lab(tmp_path_factory.mktemp("daemons")).undisturbed(*TINY)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """With Ray's folders in a place of its own, to see whether they are removed; sockets need a short path."""
    made, base = Lab(tmp_path), Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(base))
    yield made
    assert made.close() == []
    assert list(base.glob("raysim-*")) == []
    shutil.rmtree(base)  # torch has made folders there


def ours(lab: Lab) -> list[str]:
    return [line for line in lab.said() if line.startswith("raysim: ")]


def find(lab: Lab, process, name: str) -> psutil.Process:
    """That process of its Ray, once it is there."""
    found: list[psutil.Process] = []
    assert lab.until(process, lambda: found.extend(descendants(process, NAMES[name])) or bool(found)), lab.said()[-1:]
    return found[0]


def start(lab: Lab, moment: str, out: Path):
    """A run that has reached the moment: Ray's processes come, or rounds are done."""
    process = lab.start("run", *TINY, "--actors", 2, "--out", out)
    if moment == "running":
        assert lab.until(process, lambda: told(out) > 0), lab.said()[-1:]
    return process


def check_resumed(lab: Lab, out: Path, undisturbed: Path) -> None:
    """Going on as the line said ends as if nothing had happened."""
    words = ["resume", out] if (out / "config.json").exists() else ["run", *TINY, "--out", out, "--resume"]
    outcome = Outcome(1)
    lab.finish(outcome, lab.start(*words, "--actors", 2, log="resumed.log"))
    outcome.compare(out, undisturbed)
    assert outcome.problems == []


CASES = [
    ("raylet", "running"),
    *(pytest.param(who, "running", marks=pytest.mark.slow) for who in NAMES if who != "raylet"),
    *(pytest.param(who, "starting", marks=pytest.mark.slow) for who in NAMES),
]


@pytest.mark.parametrize(("who", "moment"), CASES)
def test_a_process_of_ray_is_killed(lab, undisturbed, who, moment):
    out = lab.folder / "run"
    process = start(lab, moment, out)
    victim = find(lab, process, who)
    time.sleep(random.Random(f"{who} {moment}").uniform(0.3, 0.8))
    crash(victim)
    assert lab.wait(process, GRACE) == 1, lab.said()[-3:]
    assert lab.left() == []
    (line,) = ours(lab)
    assert re.match(rf"raysim: Ray's {who} died", line)
    assert moment == "starting" or "while Ray was starting" not in line  # which an agent outlives, or a fast start
    assert (f"`python -m raysim resume {out}` goes on" in line) == (out / "config.json").exists()
    check_resumed(lab, out, undisturbed)


@pytest.mark.parametrize("who", ["raylet", "dashboard agent", "runtime-env agent"])
def test_a_process_of_the_clusters_node_is_killed(lab, who):
    """It is not the run's own, and takes the run along: Ray ends it without a word."""
    out = lab.folder / "run"
    with lab.cluster("--num-cpus", "2", stays=False) as (address, head):
        process = lab.start("run", *TINY, "--rounds", 500, "--actors", 2, "--out", out, address=address)
        assert lab.until(process, lambda: told(out) > 0), lab.said()[-1:]
        crash(find(lab, head, who))
        assert lab.wait(process, GRACE) not in (0, None), lab.said()[-3:]
        end = time.monotonic() + GRACE
        while not ours(lab) and time.monotonic() < end:
            time.sleep(0.1)  # until the process beside it has said so
    (line,) = ours(lab)
    assert re.match(rf"raysim: Ray's {who} died", line)
    assert f"`python -m raysim resume {out}` goes on" in line or "resume RUN_DIR" in line


@pytest.mark.parametrize("moment", ["running", pytest.param("starting", marks=pytest.mark.slow)])
def test_the_driver_is_killed(lab, moment):
    out = lab.folder / "run"
    process = start(lab, moment, out)
    find(lab, process, "raylet")
    crash(psutil.Process(process.pid))
    assert lab.wait(process, GRACE) == -signal.SIGKILL
    assert lab.left() == []
    (line,) = ours(lab)
    assert line.startswith("raysim: the driver of the run died")


@pytest.mark.parametrize("moment", ["running", pytest.param("starting", marks=pytest.mark.slow)])
def test_sigterm_to_every_process_is_an_interrupt(lab, undisturbed, moment):
    """To the process group, as `timeout` sends it, and to those outside it, as Slurm does."""
    out = lab.folder / "run"
    process = start(lab, moment, out)
    find(lab, process, "raylet")
    everybody = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGTERM)
    for other in everybody:
        if other.is_running() and os.getpgid(other.pid) != process.pid:
            other.terminate()
    assert lab.wait(process, GRACE) == 130, lab.said()[-3:]
    assert lab.left() == []
    (line,) = ours(lab)
    assert line.startswith("raysim: interrupted")
    check_resumed(lab, out, undisturbed)
