"""Every use of Ray's private interfaces, in one place, so that an upgrade of Ray has one module to check.

tests/engine/ray_runner/test_ray_internals.py checks all of it against the installed Ray.

- Draining nodes: Ray has no public call that says which nodes are about to leave. `ray.nodes()` reports them as alive,
  but Ray starts nothing on them any more. Ray Train and Ray Data ask in the same way.
- Signals: `ray.init` takes SIGTERM for itself twice: in Python, to end the process without a word, and in its core as
  a crash, to print a stack trace and abort 3 s later. `ray.shutdown` asks each daemon with SIGTERM to end, and waits a
  second for it; those we start do not hear it (cluster.py).
- Job info: the dashboard's Jobs page shows the metadata that was given when a job was submitted, and Ray has no public
  call to add to it later. It keeps the record as JSON in its internal key-value store, which we edit there.
"""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import ray
import ray._private.utils
import ray._private.worker
from ray.experimental import internal_kv

# ray/dashboard/modules/job/common.py and ray/_private/ray_constants.py; importing those takes the dashboard's packages.
JOB_INFO_PREFIX = "_ray_internal_job_info_"
JOB_NAMESPACE = b"job"
JOB_CONFIG_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # of a submitted job's environment: its own description as JSON


def draining_nodes() -> set[str]:
    """The ids of nodes that are alive but about to leave (preempted, scaled down)."""
    return set(ray._private.state.state.get_draining_nodes())


@contextmanager
def sigterm_left_alone() -> Iterator[None]:
    """What SIGTERM does stays as it is, where `ray.init` is called in here."""
    utils, before = ray._private.utils, signal.getsignal(signal.SIGTERM)
    rays_own, utils.set_sigterm_handler = utils.set_sigterm_handler, lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = rays_own
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # in place of the core's, of which Python does not know


def shut_down_at_once() -> None:
    """`ray.shutdown`, but the daemons this process has started are killed: nothing in them is worth waiting for."""
    if (node := ray._private.worker._global_node) is not None:
        kill = partial(node.kill_all_processes, check_alive=False)
        node.kill_all_processes = lambda **asked: kill(wait=asked.get("wait", False))
    ray.shutdown()


def read_job_info(submission_id: str) -> dict[str, Any] | None:
    """What Ray keeps about a submitted job, or None if it knows no such job."""
    kept = internal_kv._internal_kv_get(f"{JOB_INFO_PREFIX}{submission_id}", namespace=JOB_NAMESPACE)
    return None if kept is None else json.loads(kept)


def write_job_info(submission_id: str, info: dict[str, Any]) -> None:
    """Replace what Ray keeps about a submitted job.

    Ray writes there too, when the job's status changes: before the job's process starts and after it ends. The process
    itself can therefore read, change and write the record without losing an update.
    """
    key = f"{JOB_INFO_PREFIX}{submission_id}"
    internal_kv._internal_kv_put(key, json.dumps(info), overwrite=True, namespace=JOB_NAMESPACE)
