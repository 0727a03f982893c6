"""Ray's private interfaces that raysim uses are there in the installed Ray, and do what raysim needs."""

import inspect
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray
from ray._private import ray_constants
from ray._private.node import Node
from ray._private.runtime_env import constants
from ray.experimental import internal_kv

from raysim.engine.ray_runner import cluster, ray_internals


def test_the_names_exist():
    assert callable(ray._private.state.state.get_draining_nodes)
    assert callable(internal_kv._internal_kv_get)
    assert callable(internal_kv._internal_kv_put)
    assert callable(ray._private.utils.set_sigterm_handler)
    assert ray._private.worker._global_node is None or ray.is_initialized()
    assert {"check_alive", "wait"} <= inspect.signature(Node.kill_all_processes).parameters.keys()


def test_ray_leaves_sigterm_alone_and_its_daemons_are_killed_at_once():
    """Connecting as a run does: that daemons do not hear SIGTERM keeps them from no end of ours."""
    handler = signal.getsignal(signal.SIGTERM)
    with cluster.connected():
        assert signal.getsignal(signal.SIGTERM) is handler
        assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, set())
        daemons = [process for _, process in ray._private.worker._global_node.live_processes()]
        blocked = [
            int(re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{d.pid}/status").read_text())[1], 16) for d in daemons
        ]
        assert daemons
        assert all(mask & 1 << (signal.SIGTERM - 1) for mask in blocked)
        assert all(daemon.poll() is None for daemon in daemons)
    assert all(daemon.poll() is not None for daemon in daemons)


IN_A_PROGRAM_OF_ONES_OWN = """
import os, signal
from raysim.engine.ray_runner import cluster
signal.signal(signal.SIGTERM, lambda signum, frame: print("heard", flush=True))
with cluster.connected():
    os.kill(os.getpid(), signal.SIGTERM)
    print("seconds until it is aborted:", signal.alarm(0))
"""


def test_nor_does_rays_core_take_sigterm_for_a_crash():
    done = subprocess.run([sys.executable, "-c", IN_A_PROGRAM_OF_ONES_OWN], capture_output=True, text=True, check=True)
    assert done.stdout == "heard\nseconds until it is aborted: 0\n"
    assert "SIGTERM" not in done.stderr


def test_keys_and_names_are_rays_own():
    assert ray_constants.KV_NAMESPACE_JOB == ray_internals.JOB_NAMESPACE
    assert constants.RAY_JOB_CONFIG_JSON_ENV_VAR == ray_internals.JOB_CONFIG_VARIABLE
    common = pytest.importorskip("ray.dashboard.modules.job.common")
    assert common.JobInfoStorageClient.JOB_DATA_KEY_PREFIX == ray_internals.JOB_INFO_PREFIX


@pytest.mark.usefixtures("local_ray")
class TestOnALiveRay:
    def test_no_node_is_draining(self):
        assert ray_internals.draining_nodes() == set()
        assert len(cluster.nodes()) == 1

    def test_a_jobs_info_comes_back_as_written_and_under_rays_key(self):
        assert ray_internals.read_job_info("raysubmit_none") is None
        info = {"status": "RUNNING", "entrypoint": "python a.py", "metadata": {"job_name": "é"}}
        ray_internals.write_job_info("raysubmit_test", info)
        assert ray_internals.read_job_info("raysubmit_test") == info
        ray_internals.write_job_info("raysubmit_test", info | {"metadata": {}})
        assert ray_internals.read_job_info("raysubmit_test") == info | {"metadata": {}}

    def test_rays_own_client_reads_what_was_written(self):
        common = pytest.importorskip("ray.dashboard.modules.job.common")
        info = common.JobInfo(status=common.JobStatus.RUNNING, entrypoint="python a.py", metadata={"a": "b"})
        ray_internals.write_job_info("raysubmit_theirs", info.to_json())
        key = common.JobInfoStorageClient.JOB_DATA_KEY.format(job_id="raysubmit_theirs")
        assert internal_kv._internal_kv_exists(key, namespace=ray_constants.KV_NAMESPACE_JOB)
        assert common.JobInfo.from_json(ray_internals.read_job_info("raysubmit_theirs")) == info
