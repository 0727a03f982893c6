"""Shared fixtures. Ray is started once for the modules that need it, on logical CPUs and GPUs."""

import os
import signal
import sys

# Before Ray is imported anywhere.
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
os.environ.pop("RAY_ADDRESS", None)

import pytest
import ray

from raysim.engine.ray_runner.cluster import worker_environment
from raysim.engine.signals import leave
from tests.tiers import REAL_RUN, is_quick

# A shell's background job ignores Ctrl-C, and so would all that is started here; what has a handler is reset there.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

STATUS = pytest.StashKey[int]()
AT_WORK: list[pytest.Item] = []  # the test that runs


def pytest_collection_modifyitems(items):
    for item in items:
        if is_quick(item):
            item.add_marker("quick")


def pytest_runtest_setup(item):
    AT_WORK[:] = [item]


def pytest_runtest_logfinish():
    AT_WORK.clear()


def refuse_processes(event: str, arguments: tuple) -> None:
    """Fail a quick test that starts a process after all, but for those by which raysim and joblib ask for facts."""
    started = event in ("subprocess.Popen", "os.posix_spawn", "os.fork")
    if started and AT_WORK and AT_WORK[0].get_closest_marker("quick") and AT_WORK[0].path.name != REAL_RUN:
        program = str(arguments[0]) if arguments else ""
        if program not in ("git", "uname", "cat", "lscpu"):
            raise RuntimeError(f"a quick test starts a process ({event} {program}): see tests/tiers.py")


sys.addaudithook(refuse_processes)


def pytest_sessionfinish(session, exitstatus):
    session.config.stash[STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """Ray, started and stopped dozens of times in this process, has crashed its end after all tests had passed."""
    # pytest-xdist ends its workers itself, and mutmut goes on.
    others = hasattr(config, "workerinput") or "MUTANT_UNDER_TEST" in os.environ
    if STATUS in config.stash and not others:
        ray.shutdown()
        config.get_terminal_writer().flush()
        leave(config.stash[STATUS])


@pytest.fixture(scope="module")
def local_ray():
    """A Ray of this module's own: 4 logical CPUs and 4 logical GPUs."""
    ray.init(
        address="local", num_cpus=4, num_gpus=4, include_dashboard=False, object_store_memory=150 * 2**20,
        logging_level="ERROR", runtime_env={"env_vars": worker_environment()},
    )  # fmt: skip
    yield
    ray.shutdown()
