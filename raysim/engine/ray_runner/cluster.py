"""The Ray cluster of a run: the one that RAY_ADDRESS names, or a local one of our own that ends with the run."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.exceptions import RayError
from ray.job_config import JobConfig

from raysim.engine.ray_runner.orphan_watch import HEAD_GONE, connect
from raysim.engine.ray_runner.plan import Node
from raysim.engine.ray_runner.ray_internals import draining_nodes
from raysim.engine.signals import end_now
from raysim.errors import RaysimError

# Between looks at the head, and how many in a row may find nobody: sooner than Ray itself ends us without a word.
HEAD_SECONDS, HEAD_MISSES = 4.0, 3

# The nodes a run may use, and how much of each, as JSON: what `raysim compare` gives each of its runs.
SHARE = "RAYSIM_SHARE"

ROOT = str(Path(__file__).resolve().parents[3])


def worker_environment() -> dict[str, str]:
    """What actors need beside Ray's own: the path raysim was imported from, and reproducible cuBLAS."""
    path = [ROOT] + [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != ROOT]
    return {"PYTHONPATH": os.pathsep.join(path), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@contextmanager
def connected(metadata: dict[str, str] | None = None) -> Iterator[None]:
    """Connect to RAY_ADDRESS, or start a local Ray, for as long as this lasts. The dashboard shows the metadata."""
    address = os.environ.get("RAY_ADDRESS")
    if address:
        _check_listening(address)
    options: dict[str, Any] = {"logging_level": logging.ERROR, "job_config": JobConfig(metadata=dict(metadata or {}))}
    if address:
        options["runtime_env"] = {"env_vars": worker_environment()}
    else:  # its workers inherit ours, and those Ray starts beforehand can be used
        options["include_dashboard"] = False
        os.environ |= worker_environment()
    on_terminate = signal.getsignal(signal.SIGTERM)  # ray.init puts its own there
    before = psutil.Process().children(recursive=True)
    reaper = None if address else _start_reaper()
    try:
        try:
            ray.init(address=address or "local", **options)
        except Exception as error:  # Ray raises all kinds, a bare Exception where its start takes too long
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            where = f"RAY_ADDRESS={address}" if address else "a local Ray"
            raise RaysimError(f"cannot connect to {where}: {reason}") from error
        signal.signal(signal.SIGTERM, on_terminate)
        head = address_of_head()
        reaper = reaper or _start_reaper(head)
        over = threading.Event()
        threading.Thread(target=_watch_head, args=(head, before, over), daemon=True).start()
        try:
            yield
        except RayError as error:  # what nobody expected: a full disk, a node out of reach
            raise RaysimError(f"Ray failed: {type(error).__name__}: {str(error).strip().splitlines()[0]}") from error
        finally:
            over.set()
    finally:
        started = [process for process in psutil.Process().children(recursive=True) if process not in before]
        ray.shutdown()
        if reaper:
            reaper.communicate(b".")
        # Interrupted while it starts, Ray leaves some of its processes behind.
        _, left = psutil.wait_procs(started, timeout=1)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _start_reaper(*head: str) -> subprocess.Popen:
    """In a session of its own: Ctrl-C is not for it."""
    command = [sys.executable, "-m", "raysim.engine.ray_runner.orphan_watch", str(os.getpid()), *head]
    environment = os.environ | worker_environment()
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, start_new_session=True
    )


def _watch_head(head: str, before: list[psutil.Process], over: threading.Event) -> None:
    """End the process where the head of the cluster is gone: Ray's own calls would wait for it, and not say so."""
    misses = 0
    while misses < HEAD_MISSES:
        if over.wait(HEAD_SECONDS):
            return
        try:
            connect(head)
            misses = 0
        except OSError:
            misses += 1
    end_now(HEAD_GONE.format(head), 1, before)


def _check_listening(address: str) -> None:
    """Say at once that nobody is at host:port; ray.init would try for minutes."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()) or "://" in address:
        return  # "auto", "local" and the like are for Ray to understand
    try:
        connect(address)
    except OSError as error:
        raise RaysimError(
            f"cannot connect to RAY_ADDRESS={address}: {error.strerror or error}; "
            "start a cluster there, or unset RAY_ADDRESS to use one of this run's own"
        ) from None


def address_of_head() -> str:
    """Where others can connect to the cluster we are connected to."""
    return ray.get_runtime_context().gcs_address


def nodes() -> list[Node]:
    """The living nodes that are to stay, the driver's own first, so that the server is close to the record of the run.

    Where this run has a share of the cluster (`raysim compare`), only what is in it.
    """
    here = ray.get_runtime_context().get_node_id()
    going = draining_nodes()
    alive = [n for n in ray.nodes() if n["Alive"] and n["NodeID"] not in going]
    found = [
        Node(n["NodeID"], n["Resources"].get("CPU", 0.0), int(n["Resources"].get("GPU", 0)),
             int(n["Resources"].get("memory", 0)))
        for n in alive
    ]  # fmt: skip
    if share := os.environ.get(SHARE):
        ours = {node["id"]: Node(**node) for node in json.loads(share)}
        found = [ours[n.id] for n in found if n.id in ours]
    return sorted(found, key=lambda n: (n.id != here, n.id))
