"""The metadata that the Jobs page of Ray's dashboard shows about a run."""

import json
import os
from pathlib import Path

from raysim.config import RunConfig
from raysim.engine.ray_runner import ray_internals


def about(config: RunConfig, out: Path) -> dict[str, str]:
    """Return the metadata of a run's job: the settings people look for, and where the run directory is."""
    names = ("method", "dataset", "model", "clients", "active", "rounds", "seed")
    return {"job_name": out.name, **{name: str(getattr(config, name)) for name in names}, "run_directory": str(out)}


def show_on_jobs_page(metadata: dict[str, str]) -> None:
    """Add to the metadata of the submitted job that this process belongs to, if any; the user's own stays.

    A job that was not submitted needs no such addition: it passes its metadata when it connects (cluster.py).
    """
    if ray_internals.JOB_CONFIG_VARIABLE not in os.environ:
        return
    given = json.loads(os.environ[ray_internals.JOB_CONFIG_VARIABLE])["metadata"]
    submission_id = given["job_submission_id"]
    users = {key: value for key, value in given.items() if value != submission_id}  # Ray's default name is the id
    if (info := ray_internals.read_job_info(submission_id)) is not None:
        ray_internals.write_job_info(submission_id, info | {"metadata": metadata | users})
