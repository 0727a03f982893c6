"""Shared fixtures. Ray is started once for the modules that need it, on logical CPUs and GPUs."""

import os
import sys

# Before Ray is imported anywhere.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
os.environ.pop("RAY_ADDRESS", None)

import pytest
import ray

from raysim.engine.cluster import worker_environment

STATUS = pytest.StashKey[int]()


def pytest_sessionfinish(session, exitstatus):
    session.config.stash[STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """Leave without taking the interpreter down.

    Ray's libraries, started and stopped dozens of times in this process, have crashed there after all tests had passed
    (seen once in a full run, and in no run of raysim itself, whose exit codes the tests check).
    """
    if STATUS in config.stash:
        ray.shutdown()
        config.get_terminal_writer().flush()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.stash[STATUS])


@pytest.fixture(scope="module")
def local_ray():
    """A Ray of this module's own: 4 logical CPUs and 4 logical GPUs."""
    ray.init(
        address="local", num_cpus=4, num_gpus=4, include_dashboard=False, object_store_memory=150 * 2**20,
        logging_level="ERROR", runtime_env={"env_vars": worker_environment()},
    )  # fmt: skip
    yield
    ray.shutdown()
