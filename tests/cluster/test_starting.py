"""How cluster/'s scripts start Ray: their ports are held until Ray has them, and no wait is without an end."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cluster import ports
from tests.cluster.local_cluster import ENVIRONMENT, ROOT, cluster, owned

# A `ray` that says what Ray's processes say in the case that $HOW names, once or always, and notes each start.
FAKE = """#!/usr/bin/env bash
echo started >>"$STARTS"
while [ $# -gt 0 ]; do
    case "$1" in --temp-dir) temp=$2 ;; --dashboard-port=*) port=${1#*=} ;; esac
    shift
done
logs=$temp/session_latest/logs
mkdir -p "$logs"
case "$HOW" in
    dies) echo "ValueError: there is no such option"; exit 1 ;;
    waits) ;;
    taken) echo "RuntimeError: Failed to bind to address 0.0.0.0:1; set GRPC_VERBOSITY" >"$logs/dashboard_agent.log" ;;
    slow) echo "Check failed: Timed out waiting for file /tmp/x/dashboard_agent_listen_port_1" >"$logs/raylet.err" ;;
    silent)
        echo "Ray runtime started."
        echo "Dashboard agent http address: 127.0.0.1:1" >"$logs/dashboard_agent.log"
        exec python -c "$ANSWERS_500" "$port" ;;
esac
exec sleep 300
"""

ANSWERS_500 = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_error(500, "No available agent")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

# The real one; before its first start somebody listens at one of the ports it is given, as others may: by SO_REUSEADDR.
ROBBED = """#!{python}
import os, socket, subprocess, sys, time
if sys.argv[1] == "start":
    with open(os.environ["STARTS"], "a") as starts:
        starts.write("started\\n")
        first = starts.tell() == len("started\\n")
    if first:
        port = next(word.partition("=")[2] for word in sys.argv if word.startswith(os.environ["ROBBED"] + "="))
        robber = "import socket, time; s = socket.create_server(('', {{}})); print(flush=True); time.sleep(100)"
        there = subprocess.Popen([sys.executable, "-c", robber.format(port)], stdout=subprocess.PIPE)
        there.stdout.readline()
os.execv("{ray}", ["{ray}", *sys.argv[1:]])
"""


@pytest.fixture
def one_job(tmp_path):
    """Calls cluster/one_job.sh with a `ray` of this text, for a job that does nothing; the processes are gone after."""

    def start(text: str, **variables: str) -> subprocess.CompletedProcess:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "ray").write_text(text)
        (tmp_path / "bin" / "ray").chmod(0o755)
        (tmp_path / "tmp").mkdir()
        words = ["cluster/one_job.sh", str(tmp_path / "bin"), "--", "true"]
        known = {"STARTS": str(tmp_path / "starts"), "ANSWERS_500": ANSWERS_500, "HOME": str(tmp_path)}
        done = subprocess.run(
            words, cwd=ROOT, env=ENVIRONMENT | known | variables, capture_output=True, text=True, check=False,
            timeout=250,
        )  # fmt: skip
        left = []
        for process in psutil.process_iter():
            try:
                if (
                    process.environ().get("STARTS") == known["STARTS"]
                    and "s.create_server" not in process.cmdline()[-1]
                ):
                    left.append(process)
            except (psutil.Error, IndexError):
                continue
        _, alive = psutil.wait_procs(left, timeout=60)  # the dashboard's helpers notice its end a moment later
        assert not alive
        return done

    return start


def kept_log(line: str) -> str:
    """The text of the log that a last line names."""
    (path,) = re.findall(r"; (/\S+?): ", line)
    return Path(path).read_text()


def test_a_start_that_can_come_to_nothing_ends_in_one_line_with_the_log_and_its_last_error(one_job):
    """`Ray runtime started`, and every job is answered with 500: it was asked again for ever."""
    done = one_job(FAKE, HOW="silent", RAYSIM_START_SECONDS="15")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith("one_job.sh: Ray was not up after 15 s (RAYSIM_START_SECONDS gives it longer); ")
    assert re.search(r"/submit.log: http://127.0.0.1:\d+/api/jobs/: HTTP Error 500: No available agent$", line)
    assert "500" in kept_log(line)


def test_a_start_that_says_nothing_ends(one_job):
    done = one_job(FAKE, HOW="waits", RAYSIM_START_SECONDS="5")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert "Ray was not up after 5 s" in line


def test_a_start_that_fails_is_not_tried_again(one_job, tmp_path):
    done = one_job(FAKE, HOW="dies", RAYSIM_START_SECONDS="60")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert re.fullmatch(r"one_job.sh: Ray did not start; \S+/node1.log: ValueError: there is no such option", line)
    assert (tmp_path / "starts").read_text().count("started") == 1


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("taken", "Failed to bind to address 0.0.0.0:1"),
        ("slow", "Timed out waiting for file /tmp/x/dashboard_agent_listen_port_1"),  # after 15 s, whatever the machine
    ],
)
def test_a_start_whose_ports_are_taken_or_come_too_late_is_tried_again_and_ends(one_job, tmp_path, how, says):
    done = one_job(FAKE, HOW=how, RAYSIM_START_SECONDS="25")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert says in line
    assert (tmp_path / "starts").read_text().count("started") > 1


# What Ray does without one of its ports differs: it goes on and runs no job, or waits for a minute before it ends.
@pytest.mark.parametrize(
    "port",
    [
        "--dashboard-agent-listen-port",
        *(
            pytest.param(port, marks=pytest.mark.slow)
            for port in (
                "--port", "--dashboard-port", "--ray-client-server-port", "--node-manager-port",
                "--object-manager-port", "--dashboard-agent-grpc-port", "--runtime-env-agent-port",
                "--metrics-export-port",
            )
        ),
    ],
)  # fmt: skip
def test_a_port_that_is_taken_at_the_worst_moment_costs_another_start(port, one_job, tmp_path):
    text = ROBBED.format(python=sys.executable, ray=Path(sys.executable).with_name("ray"))
    done = one_job(text, ROBBED=port, RAYSIM_START_SECONDS="200")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "succeeded" in done.stdout
    assert (tmp_path / "starts").read_text().count("started") == 2


class TestPorts:
    def test_they_are_outside_what_the_kernel_deals_out(self):
        low, high = ports.ephemeral()
        with ports.free(200) as found:
            assert len(set(found)) == 200
            assert not [port for port in found if low <= port <= high]

    @pytest.mark.parametrize(
        ("ephemeral", "first", "last"),
        [
            ((32768, 60999), 20000, 32767), ((10000, 65535), 1024, 9999), ((1024, 60999), 61000, 65535),
            ((1024, 65535), 1024, 65535),
        ],
    )  # fmt: skip
    def test_candidates(self, ephemeral, first, last):
        choice = ports.candidates(ephemeral)
        assert (choice[0], choice[-1]) == (first, last)

    def test_a_port_that_is_held_is_nobodys_but_rays(self):
        with ports.free(1) as (port,):
            assert ports.held(port) is None  # another start at the same time
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("", port))
            with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
                assert ports.held(port) is None

    @pytest.mark.parametrize("address", ["127.0.0.1", ""])
    def test_a_port_that_somebody_listens_at_is_not_dealt_out(self, address):
        with socket.create_server((address, 0)) as server:
            assert ports.held(server.getsockname()[1]) is None

    def test_they_are_let_go_when_the_script_is_killed(self):
        script = "read -r -a words < <(exec python cluster/ports.py a b); echo ${words[@]} $!; sleep 100"
        with subprocess.Popen(["bash", "-c", script], cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE) as shell:
            first, second, holder = shell.stdout.readline().decode().split()
            assert (first[:2], second[:2]) == ("a=", "b=")
            assert ports.held(int(first[2:])) is None
            holding = psutil.Process(int(holder))
            for child in psutil.Process(shell.pid).children():
                if child != holding:
                    child.kill()  # the shell's sleep
            os.kill(shell.pid, signal.SIGKILL)
        holding.wait(60)
        ports.held(int(first[2:])).close()


class TestCluster:
    """The fixture of the tests of local.sh."""

    def test_what_could_not_start_is_told_once_and_leaves_nothing(self, tmp_path, monkeypatch):
        parent = Path("/tmp") / f"rs{os.getpid()}"
        parent.mkdir(mode=0o700)
        monkeypatch.setitem(ENVIRONMENT, "RAYSIM_START_SECONDS", "1")
        try:
            with cluster(parent / "c") as it:
                with pytest.raises(pytest.fail.Exception, match=r"there is no cluster: local\.sh: Ray was not up"):
                    it.needed()
                with pytest.raises(pytest.skip.Exception, match=r"there is no cluster: local\.sh: Ray was not up"):
                    it.needed()
            assert not owned(parent / "c")
            assert not (parent / "c").exists()
        finally:
            parent.rmdir()

    def test_what_takes_too_long_is_ended(self, monkeypatch):
        """pytest's own limit interrupts the test wherever it is: here while the script waits."""
        parent = Path("/tmp") / f"rt{os.getpid()}"
        parent.mkdir(mode=0o700)

        def limit(*_):
            raise TimeoutError

        earlier = signal.signal(signal.SIGALRM, limit)
        signal.setitimer(signal.ITIMER_REAL, 4)
        try:
            with pytest.raises(TimeoutError), cluster(parent / "c"):
                time.sleep(10)
            assert not owned(parent / "c")
            assert not (parent / "c").exists()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, earlier)
            parent.rmdir()
