"""The Ray cluster of a run: the one that RAY_ADDRESS names, or a local one of our own that ends with the run."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.exceptions import RayError
from ray.job_config import JobConfig

from raysim.engine.ending import ending
from raysim.engine.ray_runner import private_folder
from raysim.engine.ray_runner.environment import has_own_ray
from raysim.engine.ray_runner.orphan_watch import DAEMONS, Watch, connect, head_gone, obituary
from raysim.engine.ray_runner.plan import Node
from raysim.engine.ray_runner.ray_internals import draining_nodes, shut_down_at_once, sigterm_left_alone
from raysim.engine.signals import end_with, spared
from raysim.errors import RaysimError

# Between looks at the head, and how many in a row may find nobody: sooner than Ray itself ends us without a word.
HEAD_SECONDS, HEAD_MISSES = 4.0, 3

DEATH_SECONDS = 3.0  # that the run has to end by itself, and in order, once a process of its own Ray has died

# The nodes a run may use, and how much of each, as JSON: what `raysim compare` gives each of its runs.
SHARE = "RAYSIM_SHARE"

GPU_TYPE = "ray.io/accelerator-type"  # the label that Ray gives to nodes with GPUs

ROOT = str(Path(__file__).resolve().parents[3])


# For malloc: huge pages, and up to 128 MB not given back to the system, which would have to clear them for the next
# step. Together a tenth of a step's time.
HOST_MEMORY = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=134217728"

_ours = False  # whether it was us who connected this process to Ray, with the environment that actors need


def actor_options() -> dict[str, Any]:
    """What actors must be given where somebody else has connected this process to Ray."""
    return {} if _ours else {"runtime_env": {"env_vars": worker_environment()}}


def worker_environment() -> dict[str, str]:
    """What actors need beside Ray's own: the path raysim was imported from, how to use GPUs, and how to use memory.

    cuBLAS has to be reproducible. Unless the user has said something else about it, torch's memory on GPUs is to grow
    in place, so that clients of different sizes leave no gaps, and memory of the host to be kept and used again.
    """
    path = [ROOT] + [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != ROOT]
    told = {name: os.environ[name] for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF") if name in os.environ}
    memory = told or {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    memory["GLIBC_TUNABLES"] = os.environ.get("GLIBC_TUNABLES", HOST_MEMORY)
    return {"PYTHONPATH": os.pathsep.join(path), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"} | memory


@contextmanager
def connected(metadata: dict[str, str] | None = None) -> Iterator[None]:
    """Connect to RAY_ADDRESS, or start a local Ray, for as long as this lasts. The dashboard shows the metadata.

    A Ray that this process is connected to already is used, and left as it was.
    """
    if ray.is_initialized():
        with _errors_of_ray():
            yield
        return
    about = dict(metadata or {})
    options: dict[str, Any] = {"logging_level": logging.ERROR, "job_config": JobConfig(metadata=about)}
    global _ours
    with _with_own_ray(options, about) if has_own_ray() else _on_cluster(os.environ["RAY_ADDRESS"], options, about):
        _ours = True
        try:
            yield
        finally:
            _ours = False


@contextmanager
def _on_cluster(address: str, options: dict[str, Any], about: dict[str, str]) -> Iterator[None]:
    _check_listening(address)
    before = psutil.Process().children(recursive=True)
    watch = None
    deaths: list[str] = []
    over = threading.Event()
    try:
        with sigterm_left_alone():
            _init(f"RAY_ADDRESS={address}", address=address, runtime_env={"env_vars": worker_environment()}, **options)
        head = address_of_head()
        watch = Watch(os.environ | worker_environment(), about.get("run_directory", ""), head, _raylet())
        ending.listeners.append(watch.tell)
        threading.Thread(target=_hear, args=(watch, deaths), daemon=True).start()
        threading.Thread(target=_watch_head, args=(head, deaths, before, over), daemon=True).start()
        with _errors_of_ray():
            yield
    finally:
        over.set()
        ray.shutdown()
        if watch:
            _over(watch)


@contextmanager
def _with_own_ray(options: dict[str, Any], about: dict[str, str]) -> Iterator[None]:
    """A local Ray: nobody else can reach its files, a signal is for this process alone, and it ends with it."""
    os.environ |= worker_environment()  # its workers inherit ours, and those Ray starts beforehand can be used
    before = psutil.Process().children(recursive=True)
    folder = private_folder.make()
    watch = Watch(dict(os.environ), about.get("run_directory", ""), folder=folder)
    ending.listeners.append(watch.tell)
    deaths: list[str] = []
    over = threading.Event()
    threading.Thread(target=_watch_daemons, args=(watch, deaths, before, over), daemon=True).start()
    try:
        try:
            with sigterm_left_alone(), _sigterm_blocked():
                options |= {"include_dashboard": False, "_temp_dir": str(folder / private_folder.RAY)}
                _init("a local Ray", address="local", **options)
            watch.tell("running")
            with _errors_of_ray():
                yield
        except (RaysimError, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) and ending.in_command:
                raise
            time.sleep(0.3)  # a death may be known in a moment
            if deaths:  # what followed from it is not worth telling
                raise RaysimError(_line(watch, deaths).removeprefix("raysim: ")) from error
            raise
    finally:
        # Interrupted while it starts, Ray leaves some of its processes behind; and its agents try for a minute.
        started = [process for process in psutil.Process().children(recursive=True) if process not in before]
        started = [process for process in started if process.pid not in spared]
        watch.tell("stopping")
        shut_down_at_once()
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(started, timeout=5)
        private_folder.remove(folder)
        over.set()
        _over(watch)


def _init(where: str, **options: Any) -> None:
    try:
        ray.init(**options)
    except Exception as error:  # Ray raises all kinds, a bare Exception where its start takes too long
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RaysimError(f"cannot connect to {where}: {reason}") from error


@contextmanager
def _errors_of_ray() -> Iterator[None]:
    """What nobody expected (a full disk, a node out of reach) becomes one line."""
    try:
        yield
    except RayError as error:
        raise RaysimError(f"Ray failed: {type(error).__name__}: {str(error).strip().splitlines()[0]}") from error


@contextmanager
def _sigterm_blocked() -> Iterator[None]:
    """What is started in here does not hear SIGTERM, nor does what that starts.

    Whoever sends it to all processes of a group or a job (`timeout`, Slurm) means the run, which ends its Ray in order.
    Without it, Ray ends the run at once, with an error. This process hears it in its other threads.
    """
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def _over(watch: Watch) -> None:
    """A command has its last word still to say; otherwise this was all."""
    watch.tell("over")
    if not ending.in_command:
        ending.listeners.remove(watch.tell)
        watch.tell("said")


def _line(watch: Watch, deaths: list[str]) -> str:
    return obituary(deaths[0], "running" in watch.reported, watch.run_directory)


def _watch_daemons(watch: Watch, deaths: list[str], before: list[psutil.Process], over: threading.Event) -> None:
    """End the run where Ray's processes are gone: its calls would wait for them, and not say so.

    A command ends with its process; in somebody's program the main thread is interrupted.
    """
    for who in watch.deaths():
        deaths.append(who)
        if who in DAEMONS.values():
            if not over.wait(DEATH_SECONDS):
                if ending.in_command:
                    end_with(_line(watch, deaths), before)
                elif main := threading.main_thread().ident:
                    signal.pthread_kill(main, signal.SIGINT)
            return


def _hear(watch: Watch, deaths: list[str]) -> None:
    """Note what has died; and while somebody listens, there is always a watcher."""
    for who in watch.deaths():
        deaths.append(who)


def _watch_head(head: str, deaths: list[str], before: list[psutil.Process], over: threading.Event) -> None:
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
    end_with(head_gone(head, deaths), before)


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


def _raylet() -> str:
    """The socket of the raylet that this process is connected to, by which it is found on this machine."""
    here = ray.get_runtime_context().get_node_id()
    return next(node["RayletSocketName"] for node in ray.nodes() if node["NodeID"] == here)


def nodes() -> list[Node]:
    """The living nodes that are to stay, the driver's own first, so that the server is close to the record of the run.

    Where this run has a share of the cluster (`raysim compare`), only what is in it.
    """
    here = ray.get_runtime_context().get_node_id()
    going = draining_nodes()
    alive = [n for n in ray.nodes() if n["Alive"] and n["NodeID"] not in going]
    found = [
        Node(n["NodeID"], n["Resources"].get("CPU", 0.0), int(n["Resources"].get("GPU", 0)),
             int(n["Resources"].get("memory", 0)), n["Labels"].get(GPU_TYPE))
        for n in alive
    ]  # fmt: skip
    if share := os.environ.get(SHARE):
        ours = {node["id"]: Node(**node) for node in json.loads(share)}
        found = [ours[n.id] for n in found if n.id in ours]
    return sorted(found, key=lambda n: (n.id != here, n.id))
