"""Ray's private calls, all in one place: tests/engine/ray_runner/test_ray_internals.py checks them against Ray."""

from __future__ import annotations

import json
import os

import ray
from ray.experimental import internal_kv

# How Ray hands a submitted job its own description, and where it keeps what the dashboard's Jobs page shows
# (ray/dashboard/modules/job/common.py).
JOB_CONFIG, JOB_KEY, JOB_NAMESPACE = "RAY_JOB_CONFIG_JSON_ENV_VAR", "_ray_internal_job_info_{}", b"job"


def draining_nodes() -> set[str]:
    """Nodes that are alive but about to go (preempted, scaled down); Ray starts nothing on them any more.

    Ray has no public call for it; Ray Train and Ray Data ask the same way.
    """
    return set(ray._private.state.state.get_draining_nodes())


def add_job_metadata(metadata: dict[str, str]) -> None:
    """Show these facts on the Jobs page for the submitted job this process is, if it is one.

    What was given at submission stays. Ray has no call to add to a job's metadata once it runs.
    """
    if JOB_CONFIG not in os.environ:
        return
    given = json.loads(os.environ[JOB_CONFIG])["metadata"]
    submission = given["job_submission_id"]
    theirs = {k: v for k, v in given.items() if v != submission}  # Ray's own default for the name is the id
    key = JOB_KEY.format(submission)
    if (kept := internal_kv._internal_kv_get(key, namespace=JOB_NAMESPACE)) is not None:
        # Ray itself writes there when the job's status changes: before this process starts, and after it ends.
        info = json.loads(kept) | {"metadata": metadata | theirs}
        internal_kv._internal_kv_put(key, json.dumps(info), overwrite=True, namespace=JOB_NAMESPACE)
