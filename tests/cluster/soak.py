"""Starts cluster/local.sh and cluster/one_job.sh many times beside busy processes and one that takes ports at random.

`python -m tests.cluster.soak --times 50 --busy 4 --record soak.jsonl` adds a line per start to the record, goes on
where that ends, and prints the counts. Each start must be up, or end in one line, within a minute.
"""

import argparse
import json
import os
import random
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

from cluster import ports
from tests.cluster.local_cluster import ENVIRONMENT, ROOT, owned

LIMIT = 60  # seconds in which it is decided
JOB_LIMIT = 900  # of the job that follows; not what is tried here
JOB = [
    "jobs/fedavg_100clients.py", "--train-size", "200", "--test-size", "50", "--clients", "10", "--active", "4",
    "--rounds", "3", "--model", "mlp", "--dataset", "shapes",
]  # fmt: skip
A_SECOND, HOLD_SECONDS = 20, (1.0, 10.0)


def take_ports() -> None:
    """Take ports for some seconds each, half of them where ours are; half in the one way that is not kept out."""
    ours, until = ports.candidates(ports.ephemeral()), list[tuple[float, socket.socket]]()
    while True:
        taken = socket.socket()
        port = random.choice(ours) if random.random() < 0.5 else random.randrange(1024, 65536)
        if random.random() < 0.5:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            taken.bind(("", port))
            taken.listen()
        until.append((time.monotonic() + random.uniform(*HOLD_SECONDS), taken))
        for end, other in until:
            if end < time.monotonic():
                other.close()
        until = [(end, other) for end, other in until if end >= time.monotonic()]
        time.sleep(1 / A_SECOND)


@contextmanager
def disturbed(busy: int):
    """So many processes that only compute, and one that takes ports."""
    taker = subprocess.Popen([sys.executable, "-m", "tests.cluster.soak", "--take-ports"])
    others = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(busy)]
    try:
        yield
    finally:
        for process in (taker, *others):
            process.kill()
            process.wait()


def run(words: list[str], decided: str, **variables: str) -> tuple[str, float, str]:
    """What became of a start (up, one line, hang or else), after how many seconds, and what it said on stderr."""
    began, said, took = time.monotonic(), "", 0.0
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            words, cwd=ROOT, env=ENVIRONMENT | variables, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        with process, selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                ready = selector.select(max(0.0, began + (JOB_LIMIT if took else LIMIT + 10) - time.monotonic()))
                piece = os.read(process.stdout.fileno(), 65536) if ready else b""
                said += piece.decode(errors="replace")
                if not took and re.search(decided, said):
                    took = time.monotonic() - began
                if not piece:
                    break
            if not ready:
                process.terminate()  # its trap stops Ray
        errors.seek(0)
        lines = errors.read().strip().splitlines()
    took = took or time.monotonic() - began
    if not ready:
        kind = "job hangs" if re.search(decided, said) else "hang"
    elif process.returncode == 0:
        kind = "up"
    elif process.returncode == 1 and len(lines) == 1:
        kind = "one line"
    else:
        kind = f"code {process.returncode}"
    if kind in ("up", "one line") and took > LIMIT:
        kind += ", late"
    return kind, round(took, 1), " / ".join(lines[-3:]) if kind != "up" else ""


def local() -> tuple[str, float, str]:
    parent = Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))
    state = {"RAYSIM_CLUSTER": str(parent / "c")}
    try:
        kind, took, lines = run(["cluster/local.sh", "start"], "to use it:", **state)
        stopped = subprocess.run(["cluster/local.sh", "stop"], cwd=ROOT, env=ENVIRONMENT | state, check=False)
        if left := owned(parent / "c"):
            kind += f", left {[process.name() for process in left]}"
        return (kind if stopped.returncode == 0 else f"{kind}, not stopped"), took, lines
    finally:
        shutil.rmtree(parent)


def one_job() -> tuple[str, float, str]:
    with tempfile.TemporaryDirectory() as folder:
        words = ["cluster/one_job.sh", str(Path(sys.executable).parent), "--", *JOB, "--out", f"{folder}/run"]
        kind, took, lines = run(words, "dashboard while the job runs")
        return (kind if kind != "up" or Path(folder, "run", "summary.json").exists() else "no run"), took, lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--busy", type=int, default=4)
    parser.add_argument("--record", type=Path, default=Path("soak.jsonl"))
    parser.add_argument("--take-ports", action="store_true", help="be the process that takes ports")
    asked = parser.parse_args()
    if asked.take_ports:
        take_ports()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("soak: ended"))  # and so the processes it started
    done = [json.loads(line) for line in asked.record.read_text().splitlines()] if asked.record.exists() else []
    with disturbed(asked.busy):
        for number in range(asked.times):
            for script, start in (("local.sh", local), ("one_job.sh", one_job)):
                if sum(line["script"] == script for line in done) > number:
                    continue
                kind, took, lines = start()
                load = os.getloadavg()[0]
                done.append({"script": script, "kind": kind, "seconds": took, "load": round(load, 1), "said": lines})
                with asked.record.open("a") as record:
                    record.write(json.dumps(done[-1]) + "\n")
    for script in ("local.sh", "one_job.sh"):
        ours = [line for line in done if line["script"] == script]
        counts = ", ".join(f"{number} {kind}" for kind, number in Counter(line["kind"] for line in ours).most_common())
        print(f"{script}: {counts}; the longest took {max(line['seconds'] for line in ours)} s")


if __name__ == "__main__":
    main()
