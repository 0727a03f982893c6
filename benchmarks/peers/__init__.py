"""Other simulators on the same workloads, each in an environment of its own (`python -m benchmarks.compare --peers`).

The environments are made with pip as it is configured on this machine. If that installs torch for GPUs, everything
works the same but the download is larger; point pip at the CPU builds to avoid it.
"""

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.workloads import PROCESSES, Workload

TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Peer:
    about: str
    packages: tuple[str, ...]  # and options of pip
    launcher: tuple[str, ...] = ()  # arguments of Python before the program's own


PEERS = {
    "flower": Peer("Flower 1.41.0", ("flwr[simulation]==1.41.0", "psutil")),
    "pfl": Peer(
        "pfl 0.6.0",
        ("pfl[pytorch]==0.6.0", "psutil"),
        ("-m", "torch.distributed.run", "--nproc_per_node", str(PROCESSES)),
    ),
    # It asks for Python 3.12 but works with 3.11. NumPy has a version here because its newest may really need 3.12.
    "blazefl": Peer(
        "BlazeFL 2.0.3, threads",
        ("--ignore-requires-python", "blazefl==2.0.3", "numpy==2.4.6", "tqdm", "psutil"),
    ),
}


def install(name: str, folder: Path) -> Path:
    """The Python of the peer's environment, which is made if it does not exist."""
    home = folder / name
    python, installed = home / "bin" / "python", home / ".installed"
    if not installed.exists():
        print(f"installing {PEERS[name].about} into {home.name}/ (minutes)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        # torch first and by itself, so that the peer uses that version.
        for packages in ((TORCH,), PEERS[name].packages):
            command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
            subprocess.run(command, check=True)
        installed.touch()
    return python


def command(name: str, folder: Path, workload: Workload, images: Path, rounds: int) -> list[str]:
    """What starts the peer as a side (benchmarks/turns.py)."""
    python = install(name, folder)
    program = ["-m", f"benchmarks.peers.{name}", workload.to_json(), "--data", str(images), "--rounds", str(rounds)]
    return [str(python), *PEERS[name].launcher, *program]


def parsed(description: str, arguments: list[str] | None) -> argparse.Namespace:
    """What `command` gave to the peer's program, which runs in the peer's environment."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("workload", type=Workload.from_json)
    parser.add_argument("--data", required=True, help="folder with the saved images")
    parser.add_argument("--rounds", type=int, required=True)
    return parser.parse_args(arguments)
