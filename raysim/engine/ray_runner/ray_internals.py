"""Every use of Ray's private interfaces, in one place, so that an upgrade of Ray has one module to check.

tests/engine/ray_runner/test_ray_internals.py checks all of it against the installed Ray.

- Draining nodes: Ray has no public call that says which nodes are about to leave. `ray.nodes()` reports them as alive,
  but Ray starts nothing on them any more. Ray Train and Ray Data ask in the same way.
- Job info: the dashboard's Jobs page shows the metadata that was given when a job was submitted, and Ray has no public
  call to add to it later. It keeps the record as JSON in its internal key-value store, which we edit there.
"""

import json
from typing import Any

import ray
from ray.experimental import internal_kv

# ray/dashboard/modules/job/common.py and ray/_private/ray_constants.py; importing those takes the dashboard's packages.
JOB_INFO_PREFIX = "_ray_internal_job_info_"
JOB_NAMESPACE = b"job"
JOB_CONFIG_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # of a submitted job's environment: its own description as JSON


def draining_nodes() -> set[str]:
    """The ids of nodes that are alive but about to leave (preempted, scaled down)."""
    return set(ray._private.state.state.get_draining_nodes())


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
