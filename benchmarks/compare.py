"""raysim against a plain PyTorch loop and, on request, Flower, pfl-research and BlazeFL, with the same FedAvg.

    make bench
    python -m benchmarks.compare --fuse 1 --data path/to/data          real CIFAR-10; also without fused clients
    python -m benchmarks.compare --peers                               installs the peers into .peers/ the first time

raysim and the plain loop take turns round by round, the first of a pair changing every time, so that a noisy machine
hits both alike; the ratio is taken pair by pair. The peers keep polling between rounds and would disturb the others, so
each runs alone, between rounds of the plain loop. All use 2 processes of one torch thread (BlazeFL 2 threads of one
process) and evaluate nothing.
"""

import argparse
import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import peers
from benchmarks.report import machine, megabytes, publish, spread, table
from benchmarks.turns import ROOT, Side, here
from benchmarks.workloads import WORKLOADS, Workload, save

WARM_UP = 2  # rounds: the first compiles and allocates
TUNED = ("w5",)  # workloads that a plain loop with the known tricks is measured on as well


@dataclass
class Measured:
    """One side on one workload; the ratios are to the plain loop."""

    name: str
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    cpu_ratios: list[float] = field(default_factory=list)
    peak: int = 0
    setup: float = 0.0

    def add(self, answer: dict) -> None:
        self.seconds.append(answer["seconds"])
        self.cpu.append(answer["cpu"])

    def row(self, workload: Workload) -> list[object]:
        cpu_ratio = f" ({statistics.median(self.cpu_ratios):.2f})" if self.cpu_ratios else ""
        return [
            workload.name.upper(), self.name, spread(self.seconds), spread(self.ratios, 2) if self.ratios else "1",
            f"{statistics.median(self.cpu):.2f}{cpu_ratio}", megabytes(self.peak), f"{self.setup:.1f}",
        ]  # fmt: skip


HEAD = ["", "", "s per round", "ratio to the plain loop", "CPU s per round (ratio)", "peak PSS, MB", "set-up, s"]


def interleaved(plain: Side, other: Side, rounds: int) -> tuple[Measured, Measured]:
    """Both sides' rounds in pairs."""
    measured = {side: Measured(side.name) for side in (plain, other)}
    for side in measured:
        for _ in range(WARM_UP):
            side.warm_up()
    for i in range(rounds):
        for side in (plain, other) if i % 2 else (other, plain):
            measured[side].add(side.round())
    return finished(plain, measured[plain]), compared(finished(other, measured[other]), measured[plain])


def alone(plain: Side, name: str, command: list[str], rounds: int) -> Measured:
    """A side with rounds of the plain loop before it starts and after it has ended."""
    base, measured = Measured(plain.name), Measured(name)
    for _ in range(rounds // 2):
        base.add(plain.round())
    with Side(name, command) as other:
        for _ in range(WARM_UP):
            other.warm_up()
        for _ in range(rounds):
            measured.add(other.round())
        finished(other, measured)
    for _ in range(rounds - rounds // 2):
        base.add(plain.round())
    return compared(measured, base)


def finished(side: Side, measured: Measured) -> Measured:
    measured.peak, measured.setup = side.peak, side.setup
    return measured


def compared(measured: Measured, plain: Measured) -> Measured:
    measured.ratios = [a / b for a, b in zip(measured.seconds, plain.seconds, strict=True)]
    # The clock of processor time has steps of 10 ms: a round may be too short for it.
    measured.cpu_ratios = [a / b for a, b in zip(measured.cpu, plain.cpu, strict=True) if b]
    return measured


def variants(fuse: int | None, extra: dict[str, str]) -> dict[str, dict]:
    """raysim's settings to measure, by name: the defaults, and another number of fused clients if asked for."""
    said = "".join(f" --{key} {value}" for key, value in extra.items())
    found = {f"raysim{said}": extra}
    return found | ({f"raysim --fuse {fuse}{said}": extra | {"fuse": fuse}} if fuse else {})


def measure(workload: Workload, asked: argparse.Namespace) -> list[Measured]:
    """All sides on one workload."""
    data = ["--data", str(Path(asked.data).resolve())] if asked.data else []
    rounds = asked.rounds or workload.rounds
    measured: list[Measured] = []
    with Side("plain loop", here("bare", workload.to_json(), *data)) as plain:
        for name, settings in variants(asked.fuse, dict(asked.set)).items():
            command = here("ours", workload.to_json(), *data, "--settings", json.dumps(settings))
            with Side(name, command) as ours:
                base, mine = interleaved(plain, ours, rounds)
            measured += ([] if measured else [base]) + [mine]
        if workload.name in TUNED:
            with Side(
                "plain loop, channels-last and fused SGD", here("bare", workload.to_json(), *data, "--tuned")
            ) as best:
                measured.append(interleaved(plain, best, rounds)[1])
        if asked.peers:
            images = asked.peers_folder / "data"
            save(workload, images, asked.data)
            for name in peers.PEERS:
                command = peers.command(name, asked.peers_folder, workload, images, WARM_UP + rounds)
                measured.append(alone(plain, peers.PEERS[name].about, command, rounds))
    return measured


def pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not key=value")
    return key.replace("-", "_"), value


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=WORKLOADS, action="append", help="only these; give it several times")
    parser.add_argument("--rounds", type=int, help="timed rounds of each side")
    parser.add_argument("--data", help="folder with CIFAR-10; otherwise W1, W4 and W5 have the built-in shapes")
    parser.add_argument("--fuse", type=int, help="measure raysim also with so many clients in one step")
    parser.add_argument("--set", type=pair, action="append", default=[], help="a setting of raysim, as key=value")
    parser.add_argument("--peers", action="store_true", help="also Flower, pfl-research and BlazeFL")
    parser.add_argument("--peers-folder", type=Path, default=ROOT / ".peers", help="where they are installed")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks.md")
    for size in ("clients", "samples", "active"):
        parser.add_argument(f"--{size}", type=int, help="another size than the workload's, to try this out")
    asked = parser.parse_args(arguments)
    asked.peers_folder = asked.peers_folder.resolve()
    sizes = {"clients": asked.clients, "samples": asked.samples, "active": asked.active}
    rows, about = [], []
    for name in asked.workload or WORKLOADS:
        workload = WORKLOADS[name].resized(**sizes)
        images = ("CIFAR-10" if asked.data else "shapes") if workload.shape[0] == 3 else "random pixels"
        about.append(f"- {name.upper()}: {workload.describe()}; {images}; {asked.rounds or workload.rounds} rounds")
        for measured in measure(workload, asked):
            rows.append(measured.row(workload))
            print(" | ".join(map(str, rows[-1])), flush=True)
    text = [
        "## FedAvg beside a plain loop" + (", Flower, pfl-research and BlazeFL" if asked.peers else ""),
        "`make bench` (`python -m benchmarks.compare`): SGD 0.005, momentum 0.9, weight decay 5e-4, one local epoch, "
        "batches of 10, 2 processes of one thread, no evaluation. Medians, lowest to highest in brackets; "
        "raysim's ratio is taken pair by pair of interleaved rounds. Memory and CPU are of all processes of a side.",
        "\n".join(about),
        table(HEAD, rows),
        machine(),
    ]
    publish("compare with peers" if asked.peers else "compare", "\n\n".join(text), asked.out)


if __name__ == "__main__":
    main()
