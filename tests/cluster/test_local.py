"""cluster/local.sh: three nodes with two logical GPUs each, as a user gets them; and slurm.sh on a Slurm of straw."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import grpc
import psutil
import pytest

from tests.cluster.local_cluster import ENVIRONMENT, ROOT, call, cluster, owned

SMALL = [
    "--train-size", "120", "--test-size", "40", "--clients", "12", "--active", "6", "--rounds", "2", "--tsne", "0",
    "--hfmds.every", "2", "--hfmds.steps", "3", "--fedpa.gen-steps", "5",
]  # fmt: skip

# Of GCS, object manager, raylet, workers, Ray Client and dashboard agent: a call each.
SERVICES = {
    "NodeInfoGcsService/GetAllNodeInfo", "ObjectManagerService/Pull", "NodeManagerService/GetNodeStats",
    "CoreWorkerService/GetCoreWorkerStats", "RayletDriver/ClusterInfo", "LogService/ListLogs",
}  # fmt: skip


def listening(state: Path) -> list:
    """The connections at which processes of this cluster listen."""
    found = []
    for process in owned(state):
        with suppress(psutil.NoSuchProcess):  # Ray's come and go
            found += [c for c in process.net_connections() if c.status == psutil.CONN_LISTEN]
    return found


@pytest.fixture(scope="module")
def state():
    """A directory that is not there yet, short enough for sockets."""
    parent = Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))
    yield parent / "c"
    shutil.rmtree(parent)


@pytest.fixture(scope="module")
def nodes(state):
    with cluster(state, "--nodes", "3", "--gpus", "2") as started:
        yield started


@pytest.fixture
def local(nodes):
    """The cluster, as the variables it says to export."""
    return nodes.needed()


def hashes(run: Path) -> list[str]:
    summaries = [json.loads((path / "summary.json").read_text()) for path in (run, Path(f"{run}-fedavg"))]
    return [
        summary[key] for summary in summaries for key in ("model_sha256", "server_state_sha256", "synthetic_sha256")
    ]


def compare_main_job(local: dict[str, str], folder: Path, *flags: str) -> str:
    """The main job submitted to the cluster, and in one process: the same models. Gives what the job printed."""
    there = call(
        "ray", "job", "submit", "--", "jobs/hfmds_100clients.py", *flags, "--out", str(folder / "there"), **local
    )
    assert there.returncode == 0, there.stdout + there.stderr
    here = call(sys.executable, "jobs/hfmds_100clients.py", *flags, "--out", str(folder / "here"), "--in-process")
    assert here.returncode == 0, here.stderr
    assert hashes(folder / "there") == hashes(folder / "here")
    return there.stdout


class TestThreeNodes:
    """In this order: the last one stops it."""

    def test_it_is_up_and_private(self, local, state):
        assert local.keys() == {"RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"}
        assert local["RAY_AUTH_MODE"] == "token"
        assert oct(os.stat(local["RAY_AUTH_TOKEN_PATH"]).st_mode & 0o777) == "0o600"
        assert oct(os.stat(state).st_mode & 0o777) == "0o700"
        done = call("cluster/local.sh", "status", RAYSIM_CLUSTER=str(state))
        assert done.returncode == 0
        assert len(re.findall(r"node\d: running", done.stdout)) == 3
        assert local["RAY_ADDRESS"] in done.stdout
        dashboard = int(local["RAY_API_SERVER_ADDRESS"].rpartition(":")[2])
        assert {c.laddr.ip for c in listening(state) if c.laddr.port == dashboard} == {"127.0.0.1"}

    def test_without_the_token_nothing_goes(self, local):
        submit = ["ray", "job", "submit", "--", "true"]
        address = {key: local[key] for key in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")}
        refused = call(*submit, **address, RAY_AUTH_MODE="disabled")
        assert refused.returncode != 0
        assert "auth" in (refused.stdout + refused.stderr).lower()
        wrong = call(*submit, **address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)
        assert wrong.returncode != 0
        assert call(*submit, **local).returncode == 0

    def test_no_service_of_ray_answers_without_the_token(self, local, state):
        """gRPC, whose ports are open to others (docs/dashboard.md): each service at the port it has is closed."""
        refused = set()
        for port in {connection.laddr.port for connection in listening(state)}:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                for method in SERVICES:
                    call_it = channel.unary_unary(f"/ray.rpc.{method}", bytes, bytes)
                    with pytest.raises(grpc.RpcError) as caught:  # an answer is no error
                        call_it(b"", timeout=60)
                    if caught.value.code() == grpc.StatusCode.UNAUTHENTICATED:
                        refused.add(method)
                    else:  # another service's port, or one for HTTP
                        assert caught.value.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE)
        assert refused == SERVICES

    @pytest.mark.slow
    def test_the_main_job_in_small_has_the_hashes_of_one_process(self, local, tmp_path):
        said = compare_main_job(local, tmp_path, *SMALL)
        assert re.search(r"6 client actors .* 1 per GPU on 6 GPUs, 3 nodes", said)

    @pytest.mark.slow
    @pytest.mark.timeout(3600)
    def test_the_main_job_has_the_hashes_of_one_process(self, local, tmp_path):
        compare_main_job(local, tmp_path)

    def test_a_second_start_is_refused(self, local, state):
        done = call("cluster/local.sh", "start", RAYSIM_CLUSTER=str(state))
        assert done.returncode == 2
        assert done.stderr == f"local.sh: {state} exists: cluster/local.sh stop ends what runs there\n"

    def test_stop_ends_all_of_it_and_nothing_else(self, local, state):
        assert len(owned(state)) > 6
        with subprocess.Popen(["sleep", "60", "1"], env=ENVIRONMENT | {"RAYSIM_CLUSTER": str(state)}) as stranger:
            try:
                done = call("cluster/local.sh", "stop", RAYSIM_CLUSTER=str(state))
                assert done.returncode == 0, done.stderr
                assert stranger.poll() is None
            finally:
                stranger.kill()
        assert not owned(state)
        assert not state.exists()
        gone = call("cluster/local.sh", "status", RAYSIM_CLUSTER=str(state))
        assert gone.returncode == 1
        assert call("cluster/local.sh", "stop", RAYSIM_CLUSTER=str(state)).returncode == 0  # nothing to do


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "say start, status or stop"),
        (["start", "--nodes", "0"], "--nodes '0': give a whole number, 1 or more"),
        (["start", "--gpus", "two"], "--gpus 'two': give a whole number, 0 or more"),
        (["start", "--nodes"], "--nodes: give a value"),
        (["start", "--speed", "9"], "unknown option '--speed'"),
    ],
)
def test_wrong_words_are_told_in_one_line(words, says, state):
    done = call("cluster/local.sh", *words, RAYSIM_CLUSTER=str(state))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"local.sh: {says}")
    assert not state.exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_a_dashboard_others_reach_without_a_token_is_refused(host, state):
    open_local = ["cluster/local.sh", "start", "--dashboard-host", host]
    open_job = ["cluster/one_job.sh", str(Path(sys.executable).parent), "--", "true"]
    added = {"RAYSIM_CLUSTER": str(state), "RAY_START": f"--num-gpus 2 --dashboard-host={host}"}
    for words in (open_local, open_job):
        done = call(*words, **added, RAY_AUTH_MODE="disabled")
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert f"a dashboard on '{host}' without a token is refused" in line
    assert not state.exists()


def test_a_directory_sockets_do_not_fit_into(tmp_path):
    done = call("cluster/local.sh", "start", RAYSIM_CLUSTER=str(tmp_path / ("x" * 50)))
    assert done.returncode == 2
    assert "at most 30 characters" in done.stderr


@pytest.mark.slow
def test_slurm_runs_the_job_on_all_nodes_and_leaves_nothing(tmp_path):
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin" / "srun"  # all nodes are this one
    srun.write_text('#!/usr/bin/env bash\nwhile [[ "$1" == --* ]]; do shift; done\nexec "$@"\n')
    srun.chmod(0o755)
    job = f"test-{os.getpid()}"
    slurm = {
        "SLURM_SUBMIT_DIR": str(ROOT), "SLURM_JOB_ID": job, "SLURM_NNODES": "2", "SLURM_CPUS_ON_NODE": "1",
        "SLURM_GPUS_ON_NODE": "1", "SLURMD_NODENAME": "here", "HOME": str(tmp_path),
        "PATH": f"{tmp_path / 'bin'}:{ENVIRONMENT['PATH']}",
    }  # fmt: skip
    tiny = ["--train-size", "200", "--test-size", "50", "--clients", "10", "--active", "4", "--rounds", "2"]
    spool = shutil.copy(ROOT / "cluster" / "slurm.sh", tmp_path / "slurm_script")  # as Slurm does
    done = call("bash", str(spool), "jobs/fedavg_100clients.py", *tiny, "--out", str(tmp_path / "run"), **slurm)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on 2 GPUs, 2 nodes" in done.stdout
    assert (tmp_path / "run" / "summary.json").exists()
    assert not list((tmp_path / ".raysim").iterdir())  # the token
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SLURM_JOB_ID") == job:
                left.append(process)
        except psutil.Error:
            continue
    _, alive = psutil.wait_procs(left, timeout=60)  # the dashboard's helpers notice its end a moment later
    assert not alive
