"""Strong and weak scaling over the nodes of a cluster that cluster/local.sh starts: the same work, or more with each.

    python -m benchmarks.nodes --out docs/benchmarks.md
    python -m benchmarks.nodes --nodes 1 2 --active 20 --rounds 2          quickly

For every number of nodes a cluster of so many raylets is started, with one logical CPU each, and two runs are made on
it: `strong` has the same active clients on any number of nodes, `weak` as many for every node. Clients are trained one
by one (--fuse 1), so that there is something to spread. All nodes are on one machine: what they gain ends with its
cores, and beyond that the table shows what nodes cost.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.report import machine, publish, spread, table
from benchmarks.turns import ROOT

NODES = [1, 2, 4, 8]
WARM_UP = 2  # rounds that do not count
MODEL = "small-cnn"
SCRIPT = str(ROOT / "cluster" / "local.sh")


@contextmanager
def cluster(nodes: int) -> Iterator[dict[str, str]]:
    """A cluster of so many nodes; gives the environment in which commands use it."""
    state = tempfile.mkdtemp(prefix="rn-")  # short: Ray puts sockets below it
    Path(state).rmdir()  # the script makes it
    environment = os.environ | {"RAYSIM_CLUSTER": state}
    try:
        said = subprocess.run(
            [SCRIPT, "start", "--nodes", str(nodes)], env=environment, check=True, capture_output=True, text=True
        ).stdout
        words = [word for line in said.splitlines() if line.startswith("export ") for word in shlex.split(line)[1:]]
        yield environment | dict(word.split("=", 1) for word in words)
    finally:
        subprocess.run([SCRIPT, "stop"], env=environment, check=True, capture_output=True)


def seconds(active: int, environment: dict[str, str], asked: argparse.Namespace) -> list[float]:
    """The rounds of a run with so many active clients, without the first ones."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "raysim", "run", "--dataset", "shapes", "--model", MODEL, "--partition", "iid",
            "--train-size", str(active * asked.samples), "--test-size", "100", "--clients", str(active),
            "--rounds", str(WARM_UP + asked.rounds), "--eval-every", "0", "--checkpoint-every", "0",
            "--fuse", "1", "--out", f"{folder}/run",
        ]  # fmt: skip
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["phases"]["training"] for line in lines][WARM_UP:]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    parser.add_argument("--active", type=int, default=200, help="clients: in all (strong), or for every node (weak)")
    parser.add_argument("--samples", type=int, default=20, help="per client")
    parser.add_argument("--rounds", type=int, default=8, help="timed rounds of each run")
    parser.add_argument("--out", type=Path, help="file to put the section into")
    asked = parser.parse_args(arguments)
    rows, first = [], {}
    for nodes in asked.nodes:
        with cluster(nodes) as environment:
            found = {
                "strong": seconds(asked.active, environment, asked),
                "weak": seconds(asked.active * nodes, environment, asked),
            }
        medians = {kind: statistics.median(values) for kind, values in found.items()}
        first = first or medians
        row = [nodes]
        for kind, values in found.items():
            row += [spread(values), f"{first[kind] / medians[kind]:.2f}"]
        rows.append(row)
        print(" | ".join(map(str, row)), flush=True)
    head = ["nodes", "strong, s", "speed-up", "weak, s", "efficiency"]
    text = [
        "## Scaling over nodes",
        f"`python -m benchmarks.nodes`: FedAvg, {MODEL}, 3×32×32, --fuse 1, {asked.active} active clients of "
        f"{asked.samples} samples in all (strong) or for every node (weak); nodes of one logical CPU and one actor, "
        "all on one machine, whose cores are the limit. Training of a round, medians, lowest to highest in brackets.",
        table(head, rows),
        machine(),
    ]
    publish("nodes", "\n\n".join(text), asked.out)


if __name__ == "__main__":
    main()
