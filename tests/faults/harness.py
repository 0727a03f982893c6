"""What the scenarios of chaos.py share: runs and clusters as real processes, what they wrote, and what they left."""

import json
import os
import random
import re
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from cluster import ports

ROOT = Path(__file__).resolve().parents[2]
MARK = "RAYSIM_CHAOS"  # environment variable by which a scenario finds its processes again
GRACE = 60  # seconds in which everything has to be gone, or free again
LONGEST = 600  # seconds of a run; beyond that it hangs

CLIENTS = 10
SMALL = [
    "--model", "mlp", "--clients", CLIENTS, "--train-size", 300, "--test-size", 100, "--image-size", 16,
    "--eval-batch", 25,
]  # fmt: skip
REAPED = [
    "--method", "tests.parts.reaper+fedpa", "--reaper.every", 2, "--reaper.steps", 2, "--reaper.per-client", 5,
    "--reaper.first", 2, "--reaper.layer", "features", "--fedpa.gen-steps", 5, *SMALL,
]  # fmt: skip

# Waits until a cluster has so many nodes and nothing in use; exits with what is not so.
READY = """
import sys, time, ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
end = time.time() + float(sys.argv[3])
while True:
    free, there = ray.available_resources(), ray.cluster_resources()
    taken = {k: v - free.get(k, 0) for k, v in there.items() if k in ("CPU", "GPU") and v - free.get(k, 0) > 1e-6}
    nodes = sum(node["Alive"] for node in ray.nodes())
    if nodes >= int(sys.argv[2]) and not taken:
        sys.exit(0)
    if time.time() > end:
        sys.exit(f"{nodes} nodes, still taken: {taken}")
    time.sleep(0.5)
"""


def results(path: Path) -> tuple[dict, list[dict]]:
    """What two runs of one configuration must agree on: their hashes, and the metrics but for times and failures."""
    summary = json.loads((path / "summary.json").read_text())
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"], line["phases"], line["failures"], line["retries"]
    return {k: summary[k] for k in ("model_sha256", "server_state_sha256", "synthetic_sha256")}, lines


def told(path: Path) -> int:
    """Rounds in a run's metrics so far."""
    metrics = path / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def events(path: Path, *kinds: str, since: float = 0.0) -> list[dict]:
    """A run's events of these kinds."""
    file = path / "events.jsonl"
    # Only whole lines: it may be being written.
    found = [json.loads(line) for line in file.read_text().split("\n")[:-1]] if file.exists() else []
    return [event for event in found if event["event"] in kinds and event["time"] >= since]


@dataclass
class Outcome:
    """What a scenario ends with: a line of the table, and whatever was not as it should be."""

    faults: int | str  # injected
    recoveries: list[float] = field(default_factory=list)  # seconds
    clients: int = 0  # whose work was repeated
    rounds: int = 0  # repeated
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    equal: str = "yes"  # where nothing was wrong

    def row(self, name: str) -> str:
        seconds = self.recoveries
        times = f"{statistics.median(seconds):.1f} | {max(seconds):.1f}" if seconds else "– | –"
        equal = "no" if self.problems else self.equal
        return f"| {name} | {self.faults} | {times} | {self.clients} | {self.rounds} | {equal} |"

    def add_resumed(self, out: Path, before: int, began: float) -> None:
        """Count what starting a run again at that time took, where so many rounds had been told."""
        for event in events(out, "resumed", since=began):
            self.recoveries.append(event["time"] - began)
            self.rounds += max(0, before - event["round"])

    def add(self, out: Path) -> None:
        """Count what a run's events say of its recoveries; rounds are the scenario's to count."""
        self.recoveries += [event["seconds"] for event in events(out, "actor_back", "server_back")]
        self.clients += sum(event["clients"] for event in events(out, "actor_lost"))

    def compare(self, out: Path, undisturbed: Path) -> None:
        """Name what differs between two runs."""
        if not (out / "summary.json").exists():
            self.problems.append(f"{out.name} did not finish")
            return
        (hashes, lines), (expected, all_lines) = results(out), results(undisturbed)
        self.problems += [f"{out.name}: {key} differs" for key in expected if hashes[key] != expected[key]]
        if [line["round"] for line in lines] != [line["round"] for line in all_lines]:
            self.problems.append(f"{out.name}: rounds {[line['round'] for line in lines]}")
        elif wrong := [a["round"] for a, b in zip(lines, all_lines, strict=True) if a != b]:
            self.problems.append(f"{out.name}: metrics.jsonl differs in rounds {wrong}")


class Lab:
    """One scenario's folder, seed and processes. What it starts inherits its mark, and is gone when it closes."""

    def __init__(self, folder: Path, seed: int = 0):
        self.folder, self.draw, self.mark = folder, random.Random(seed), secrets.token_hex(8)
        self.before = set(psutil.Process().children(recursive=True))
        self.family: set[psutil.Process] = set()
        self.nodes: list[subprocess.Popen] = []

    # -- processes ---------------------------------------------------------------------------------------------------

    def start(self, *words, address: str | None = None, log: str = "log", **variables: str) -> subprocess.Popen:
        """`python -m raysim …`, with a Ray of its own or on the cluster at an address; what it says is added to a log.

        In a session of its own, as a terminal would have it: Ctrl-C reaches the whole foreground group.
        """
        command = [sys.executable, "-u", "-m", "raysim", *map(str, words)]
        return self._start(command, log, variables | ({"RAY_ADDRESS": address} if address else {}))

    def _start(self, command: list[str], log: str, variables: dict[str, str]) -> subprocess.Popen:
        ours = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}
        # A cluster started here has no token; a run's own Ray makes one.
        ours |= {"RAY_AUTH_MODE": "disabled"} if "RAY_ADDRESS" in variables else {}
        ours |= {"RAY_worker_niceness": "0"}  # by default actors come last, and on a busy machine after the watchdog
        environment = ours | {MARK: self.mark, "RAY_USAGE_STATS_ENABLED": "0"} | variables
        with open(self.folder / log, "a", encoding="utf-8") as file:
            return subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self, process: subprocess.Popen, seconds: float = LONGEST) -> int | None:
        """Its exit code; None if it had to be ended for taking too long."""
        if self.until(process, lambda: False, seconds) and process.poll() is None:
            process.kill()
            process.wait()
            return None
        return process.wait()

    def until(self, process: subprocess.Popen, happened: Callable[[], bool], seconds: float = LONGEST) -> bool:
        """Wait for something to happen while the process runs; whether it still does, or time is up."""
        end = time.monotonic() + seconds
        while process.poll() is None and not happened() and time.monotonic() < end:
            self.remember()
            time.sleep(0.1)
        return process.poll() is None

    def remember(self) -> None:
        """Note who is there: a process whose parent has died is not found among its descendants any more."""
        self.family |= set(psutil.Process().children(recursive=True)) - self.before

    def left(self, within: float = GRACE) -> list[psutil.Process]:
        """What still runs of all that was started here, after waiting for it to end."""
        end = time.monotonic() + within
        while (found := self._alive()) and time.monotonic() < end:
            time.sleep(0.2)
        return found

    def _alive(self) -> list[psutil.Process]:
        found = []
        for process in self.family | set(psutil.process_iter()):
            with suppress(psutil.Error):
                # Ray's workers overwrite their environment with their title; they are in the family.
                ours = process in self.family or process.environ().get(MARK) == self.mark
                if ours and process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def close(self) -> list[str]:
        """The names of what should have ended by itself and did not; it is ended now."""
        self.remember()
        found = self.left()
        names = []
        for process in found:
            with suppress(psutil.Error):
                names.append(f"still running: {process.pid} {process.name()}")
                process.kill()
        psutil.wait_procs(found, timeout=GRACE)
        return names

    # -- runs --------------------------------------------------------------------------------------------------------

    def said(self, log: str = "log") -> list[str]:
        """The lines of a log."""
        return (self.folder / log).read_text(errors="replace").rstrip().splitlines()

    def undisturbed(self, *words, name: str = "undisturbed") -> Path:
        """The run to compare with: in one process, where nothing can be lost; the hashes are the same."""
        out, log = self.folder / name, f"{name}.log"
        if (code := self.wait(self.start("run", *words, "--in-process", "--out", out, log=log))) != 0:
            raise RuntimeError(f"the undisturbed run ended with {code}: {self.said(log)[-1:]}")
        return out

    def finish(self, outcome: Outcome, process: subprocess.Popen) -> None:
        """Wait for a run that should end well."""
        if (code := self.wait(process)) != 0:
            how = "hangs" if code is None else f"exit code {code}"
            outcome.problems.append(f"{how}: {' / '.join(self.said()[-2:])}")

    def light(self, names: list[str]) -> Path:
        """A folder of fuses (tests/parts/reaper.py, doomed.py)."""
        fuses = self.folder / "fuses"
        fuses.mkdir(exist_ok=True)
        for name in names:
            (fuses / name).touch()
        return fuses

    # -- clusters ----------------------------------------------------------------------------------------------------

    @contextmanager
    def cluster(self, *options: str, stays: bool = True, **variables: str):
        """A head of its own with these `ray start` options and variables; its address and its process.

        If it `stays`, all its CPUs and GPUs must be free in the end.
        """
        with ports.free(2) as (gcs, client):
            address = f"127.0.0.1:{gcs}"
            own = ["--head", "--port", str(gcs), "--ray-client-server-port", str(client), "--include-dashboard=false"]
            head = self.node(*own, *options, **variables)
            try:
                _until_listening(address)
                yield address, head
                if stays:
                    self.wait_ready(address)
            finally:
                for node in reversed(self.nodes):
                    stop(node)
                self.nodes.clear()

    def node(self, *options: str, **variables: str) -> subprocess.Popen:
        """`ray start --block`, a process that ends what it started when it is ended, as it is with the cluster."""
        ray = Path(sys.executable).with_name("ray")
        apart = ["--node-ip-address", "127.0.0.1", "--min-worker-port", "0", "--max-worker-port", "0"]
        apart += ["--dashboard-agent-listen-port", "0", "--disable-usage-stats"]
        command = [str(ray), "start", "--block", *apart, *options]
        self.nodes.append(self._start(command, "ray.log", {"RAY_AUTH_MODE": "disabled"} | variables))
        return self.nodes[-1]

    def wait_ready(self, address: str, nodes: int = 1) -> None:
        """Until the cluster has so many nodes, and all that they have is free."""
        command = [sys.executable, "-c", READY, address, str(nodes), str(GRACE)]
        if (code := self.wait(self._start(command, "ready.log", {"RAY_ADDRESS": address}))) != 0:
            raise RuntimeError(f"the cluster is not as it should be ({code}): {self.said('ready.log')[-1:]}")


def stop(node: subprocess.Popen) -> None:
    """End a node as its owner would."""
    node.terminate()
    try:
        node.wait(GRACE)
    except subprocess.TimeoutExpired:
        node.kill()
        node.wait()


def crash(process: psutil.Process) -> float:
    """Kill it with -9; when that was."""
    now = time.time()
    process.send_signal(signal.SIGKILL)
    return now


def descendants(process: subprocess.Popen, name: str) -> list[psutil.Process]:
    """Those whose name or title matches."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.Error):
            if re.search(name, f"{child.name()} {' '.join(child.cmdline())}"):
                found.append(child)
    return found


def _until_listening(address: str, seconds: float = GRACE) -> None:
    host, _, port = address.rpartition(":")
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
