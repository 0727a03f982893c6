"""The runs behind docs/results.md: every row of a study, two at a time on one core each, and its table.

    python -m benchmarks.study cifar10 --data ../shared/data --out runs/study        (hours on 2 cores)

A run that is finished is not repeated, so an interrupted study goes on where it was. Rows are in order of importance.
"""

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

WINDOW = 10  # rounds whose accuracies are averaged: with few classes per client single rounds wander

CIFAR10 = {
    "preset": "hfmds-cifar10", "train-size": 10_000, "test-size": 5_000, "clients": 20, "active": 10,
    "hfmds.every": 10, "hfmds.steps": 100,
}  # fmt: skip
# 29 or 39: one round before another synthesis, which that one round would not show.
ONE = CIFAR10 | {"partition": "classes", "classes-per-client": 1, "rounds": 29}
LONG = ONE | {"rounds": 39}
TWO = CIFAR10 | {"partition": "classes", "classes-per-client": 2, "rounds": 29}
DIRICHLET = CIFAR10 | {"partition": "dirichlet", "beta": 0.05, "rounds": 29}
BOTH = {"method": "hfmds+fedpa", "fedpa.lambda-ge": 0.5, "fedpa.lambda-po": 0.01, "fedpa.lambda-po-floor": 0}

STUDIES = {
    "cifar10": {
        "1 class: FedAvg": LONG | {"method": "fedavg"},
        "1 class: HFMDS": LONG,
        "1 class: FedAvg, seed 1": LONG | {"method": "fedavg", "seed": 1},
        "1 class: HFMDS, seed 1": LONG | {"seed": 1},
        "1 class: FedAvg, seed 2": LONG | {"method": "fedavg", "seed": 2},
        "1 class: HFMDS, seed 2": LONG | {"seed": 2},
        "2 classes: FedAvg": TWO | {"method": "fedavg"},
        "2 classes: HFMDS": TWO,
        "Dirichlet 0.05: FedAvg": DIRICHLET | {"method": "fedavg"},
        "Dirichlet 0.05: HFMDS": DIRICHLET,
        "1 class: FMDS": ONE | {"method": "fmds"},
        "1 class: HFMDS+FedPA": ONE | BOTH,
        "1 class: HFMDS, α 0.5": ONE | {"hfmds.alpha": 0.5},
        "1 class: HFMDS, match mse": ONE | {"hfmds.match": "mse"},
        "1 class: HFMDS, match kl-sum": ONE | {"hfmds.match": "kl-sum"},
        "1 class: HFMDS, match kl-reverse": ONE | {"hfmds.match": "kl-reverse"},
        "2 classes: HFMDS, α 0.5": TWO | {"hfmds.alpha": 0.5},
        "Dirichlet 0.05: HFMDS, α 0.5": DIRICHLET | {"hfmds.alpha": 0.5},
        "2 classes: FMDS": TWO | {"method": "fmds"},
        "2 classes: HFMDS+FedPA": TWO | BOTH,
        "Dirichlet 0.05: FMDS": DIRICHLET | {"method": "fmds"},
        "Dirichlet 0.05: HFMDS+FedPA": DIRICHLET | BOTH,
    },
}  # fmt: skip


def run(out: Path, settings: dict[str, object]) -> None:
    """One row, in one process, unless it is there; its output goes beside it."""
    if (out / "summary.json").exists():
        return
    settings = {k: v for k, v in settings.items() if settings.get("method") != "fedavg" or not k.startswith("hfmds.")}
    flags = [text for key, value in settings.items() for text in (f"--{key}", str(value))]
    command = [sys.executable, "-m", "raysim", "run", "--in-process", "--out", str(out), "--overwrite", *flags]
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(out.with_suffix(".log"), "w") as log:
        subprocess.run(command, stdout=log, stderr=log, check=True)


def window(accuracies: list[float]) -> str:
    """Mean and range of the last rounds."""
    last = accuracies[-WINDOW:]
    return f"{statistics.mean(last):.2f} ({min(last):.1f} to {max(last):.1f})"


def row(name: str, out: Path) -> str:
    """A finished run as a line of the table."""
    summary = json.loads((out / "summary.json").read_text())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    accuracies = [100 * line["accuracy"] for line in lines]
    psnr = summary["psnr"]
    gflops = summary.get("gflops_per_client_round") or {}
    cells = [
        name,
        window(accuracies[:29]),
        window(accuracies) if len(accuracies) > 29 else "",
        f"{psnr:.2f}" if psnr else "",
        " + ".join(f"{value:.2f}" for value in gflops.values()),
        f"{summary['seconds'] / 60:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--data", required=True, help="folder with the datasets")
    parser.add_argument("--out", type=Path, default=Path("runs/study"), help="folder for the runs")
    parser.add_argument("--table", action="store_true", help="only print the table of what is finished")
    arguments = parser.parse_args()
    rows = STUDIES[arguments.study]
    outs = {name: arguments.out / f"{arguments.study}-{i:02d}" for i, name in enumerate(rows)}
    if not arguments.table:
        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(run, outs[name], s | {"data": arguments.data}) for name, s in rows.items()]
            for job in jobs:
                job.result()
    print("| run | accuracy %, rounds 20-29 | rounds 30-39 | PSNR dB | GFLOPs per client and round | minutes |")
    print("|---|---|---|---|---|---|")
    for name, out in outs.items():
        if (out / "summary.json").exists():
            print(row(name, out))


if __name__ == "__main__":
    main()
