"""What the Ray dashboard's Jobs page says of a run. Its actors' names are in engine/ray_runner/placement.py."""

import json
import os
from pathlib import Path

from ray.experimental import internal_kv

from raysim.config import RunConfig

# How Ray hands a submitted job its own description, and where it keeps what the Jobs page shows
# (ray/dashboard/modules/job/common.py; tests/cluster/test_watching.py looks at the page itself).
JOB_CONFIG, JOB_KEY, JOB_NAMESPACE = "RAY_JOB_CONFIG_JSON_ENV_VAR", "_ray_internal_job_info_{}", b"job"


def about(config: RunConfig, out: Path) -> dict[str, str]:
    """A job's metadata."""
    names = ("method", "dataset", "model", "clients", "active", "rounds", "seed")
    said = {name: str(getattr(config, name)) for name in names}
    return {"job_name": out.name, **said, "run_directory": str(out)}


def show_on_jobs_page(metadata: dict[str, str]) -> None:
    """Add to the metadata of the submitted job this process is, if it is one; what was said at submission stays.

    Ray has no call for it. A job that was not submitted has what it said when it connected (cluster.py).
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
