"""The runs behind docs/results.md: every row of a study, two at a time on one core each, and its table.

    python -m benchmarks.study cifar10 --data path/to/data --out runs/study        (hours on 2 cores)

A finished run is not repeated, so an interrupted study continues where it stopped. Rows are sorted by importance.
"""

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from raysim.papers import settings_of

WINDOW = 8  # last rounds whose accuracies are averaged: with few classes per client single rounds vary
WINDOWS = {"cifar10": 10, "hfmds-warm": 5}  # where it is another number

CIFAR10 = {"preset": "hfmds-cifar10", "train-size": 10_000, "clients": 20, "active": 10, "normalise": "data"}
ONE = {"partition": "classes", "classes-per-client": 1}
TWO = {"partition": "classes", "classes-per-client": 2}
DIRICHLET = {"partition": "dirichlet", "beta": 0.05}
# The run ends just before another synthesis, whose effect one more round would not show.
LONG = CIFAR10 | {"test-size": 5_000, "rounds": 39, "hfmds.every": 10, "hfmds.steps": 100} | ONE
SHORT = CIFAR10 | {"test-size": 2_000, "rounds": 23, "hfmds.every": 8, "hfmds.steps": 50, "hfmds.per-client": 50}
FEDAVG, FMDS = {"method": "fedavg"}, {"method": "fmds"}
# The synthesis that carries features, on 20,000 images; short local training, so that a run takes minutes.
SEVERE = {
    "preset": "fedavg-cifar10", "method": "hfmds", "train-size": 20_000, "test-size": 1_000, "normalise": "half",
    "rounds": 12, "local-steps": 30, "lr": 0.01, "privacy": 0, "measures": 0, "checkpoint-every": 0,
    "hfmds.every": 6, "hfmds.first": 1, "hfmds.per-client": 40,
}  # fmt: skip
# Regime -> its partition, and its seeds: with 1, 3 and 8 no draw of 10,000 gives every client ten samples.
SEVERELY = {
    "1 class": (ONE, (0, 1, 2)),
    "Dirichlet 0.01": ({"partition": "dirichlet", "beta": 0.01, "min-samples": 10}, (0, 4, 2)),
}
REAL = {"hfmds.share": "real"}
# The synthesis before coarser images were added, with which the columns that name it were recorded.
FORMER = {"hfmds.levels": 0, "hfmds.lr": 0.1}
LETTER = {key.replace("_", "-"): value for key, value in settings_of("hfmds", "letter").items()}
AUTO = {"hfmds.match-weight": "auto"}
BOTH = {"method": "hfmds+fedpa", "fedpa.lambda-ge": 0.5, "fedpa.lambda-po": 0.01, "fedpa.lambda-po-floor": 0}
BOTH_BOUNDED = BOTH | {"fedpa.lambda-ge": 2, "fedpa.ad-reach": 1}  # as in the main job
# The main job, and what each of its halves does.
MAIN = {"preset": "hfmds-100clients", "rounds": 16, "tsne": 0, "test-size": 1_000, "privacy": 0, "measures": 0}
HALVES = {
    "FedAvg": FEDAVG,
    "HFMDS+FedPA": {},
    "HFMDS": {"method": "hfmds"},
    "real images": {"method": "hfmds"} | REAL,
    "FedPA": {"method": "fedpa"},
    "HFMDS+FedPA, unbounded": {"fedpa.ad-reach": "none"},
}
# SDA-FL's GANs and FedGAN's one are of the same size and trained as long.
SDAFL = {"preset": "sdafl-mnist-small"}
GAN = {"pool": 2000, "gan-rounds": 6, "gan-steps": 50, "gan-batch": 32, "gan-lr": 1e-3, "critic-steps": 2, "width": 12}
FEDGAN = {"method": "fedgan", "fedgan.noise": 32} | {f"fedgan.{key}": value for key, value in GAN.items()}
FEW_LABELS = SDAFL | TWO | {"labelled": 50, "batch-size": 16, "unlabelled-batch": 32}
DIGITS = {"fixmatch.flip": False}

TERMS = {
    "L_C": {"hfmds.match": "none", "hfmds.label-weight": 1},
    "EFM": {"hfmds.mu": -0.5},
    "FM": {"hfmds.mu": 0},
    "HFM": {},
}

# From a model that fits: 25 rounds of FedAvg, whole epochs, all clients active; then one synthesis and 8 more rounds.
WARM = {
    "preset": "fedavg-cifar10", "train-size": 20_000, "test-size": 5_000, "normalise": "half", "active": 20,
    "privacy": 0, "measures": 0, "checkpoint-every": 0,
} | TWO  # fmt: skip
THEN = WARM | {"method": "hfmds", "rounds": 8, "hfmds.first": 1, "hfmds.every": 100}
BOUNDS, FM_AND_HFM = {"FedAvg": FEDAVG, "real images": REAL}, {name: TERMS[name] for name in ("FM", "HFM")}
LONGER = {"hfmds.steps": 200}
# What keeps images from being noise, and what is matched; table 4's terms come before.
OTHERS = {
    "100 steps": {"hfmds.steps": 100},
    "the paper's letter, 200 steps": LETTER | LONGER,
    "the same, match-weight auto": LETTER | LONGER | AUTO,
    "with the mask": {"hfmds.cam": "relu"},
    "features": {"hfmds.layer": "features"},
    "μ 1": {"hfmds.mu": 1},
    "with cross-entropy 0.1": {"hfmds.label-weight": 0.1},
    "8×8 images, upsampled": {"hfmds.coarse": 4},
    "shifted at random": {"hfmds.jitter": 2},
    "α 0.1": {"hfmds.alpha": 0.1},
    "noise 1": {"hfmds.noise": 1},
    "not clamped": {"hfmds.clamp": False},
    "no total variation": {"hfmds.tv": 0},
}


def from_warm(seed: int, rows: dict[str, dict]) -> dict[str, dict]:
    """Rows that start from the end of the row "warm", with the same clients."""
    start = {"seed": seed, "start-from": f"warm, seed {seed}"}
    return {f"{name}, seed {seed}": THEN | row | start for name, row in rows.items()}


STUDIES = {
    "cifar10": {
        f"{name}, seed {seed}": LONG | method | {"seed": seed}
        for seed in (0, 1, 2)
        for name, method in (("FedAvg", FEDAVG), ("HFMDS", {}))
    },
    "cifar10-variants": {
        "1 class: FedAvg": SHORT | ONE | FEDAVG,
        "1 class: HFMDS": SHORT | ONE,
        "2 classes: FedAvg": SHORT | TWO | FEDAVG,
        "2 classes: HFMDS": SHORT | TWO,
        "Dirichlet 0.05: FedAvg": SHORT | DIRICHLET | FEDAVG,
        "Dirichlet 0.05: HFMDS": SHORT | DIRICHLET,
        "1 class: HFMDS, match mse": SHORT | ONE | {"hfmds.match": "mse"},
        "1 class: HFMDS, α 0.5": SHORT | ONE | {"hfmds.alpha": 0.5},
        "2 classes: HFMDS, α 0.5": SHORT | TWO | {"hfmds.alpha": 0.5},
        "Dirichlet 0.05: HFMDS, α 0.5": SHORT | DIRICHLET | {"hfmds.alpha": 0.5},
        "1 class: FMDS": SHORT | ONE | FMDS,
        "1 class: HFMDS+FedPA": SHORT | ONE | BOTH,
        "1 class: HFMDS, match kl-sum": SHORT | ONE | {"hfmds.match": "kl-sum"},
        "1 class: HFMDS, match kl-reverse": SHORT | ONE | {"hfmds.match": "kl-reverse"},
        "2 classes: FMDS": SHORT | TWO | FMDS,
        "2 classes: HFMDS+FedPA": SHORT | TWO | BOTH,
        "Dirichlet 0.05: FMDS": SHORT | DIRICHLET | FMDS,
        "Dirichlet 0.05: HFMDS+FedPA": SHORT | DIRICHLET | BOTH,
    },
    "hfmds-severe": {
        f"{regime}: {name}, seed {seeds[i]}": SEVERE | partition | method | {"seed": seeds[i]}
        for methods in ({"FedAvg": FEDAVG, "real images": REAL}, {"HFMDS": {}})
        for i in range(3)
        for regime, (partition, seeds) in SEVERELY.items()
        for name, method in methods.items()
    },
    "hfmds-two-classes": {
        f"2 classes: {name}, seed {seed}": SEVERE | TWO | method | {"seed": seed}
        for seed in (0, 1, 2)
        for name, method in (("FedAvg", FEDAVG), ("HFMDS", {}), ("real images", REAL))
    },
    # What each choice does, with one class per client; FedAvg, the default and real images are in hfmds-severe.
    "hfmds-variants": {
        "the paper's letter, 100 steps": SEVERE | ONE | LETTER | {"hfmds.steps": 100},
        "with the mask": SEVERE | ONE | {"hfmds.cam": "relu"},
        "features": SEVERE | ONE | {"hfmds.layer": "features"},
        "cross-entropy alone": SEVERE | ONE | {"hfmds.match": "none", "hfmds.label-weight": 1},
        "former synthesis": SEVERE | ONE | FORMER,
        "μ 0 (FMDS)": SEVERE | ONE | {"hfmds.mu": 0},
        "α 0.1": SEVERE | ONE | {"hfmds.alpha": 0.1},
        "with cross-entropy 0.1": SEVERE | ONE | {"hfmds.label-weight": 0.1},
        "μ 1": SEVERE | ONE | {"hfmds.mu": 1},
        "first synthesis in round 6": SEVERE | ONE | {"hfmds.first": "every"},
        "μ -0.5 (easy)": SEVERE | ONE | {"hfmds.mu": -0.5},
        "the paper's letter, match-weight auto, 100 steps": SEVERE | ONE | LETTER | AUTO | {"hfmds.steps": 100},
        "100 steps": SEVERE | ONE | {"hfmds.steps": 100},
        "images of both syntheses kept, seed 2": SEVERE | ONE | {"hfmds.accumulate": True, "seed": 2},
    },
    # The terms of table 4, each with our priors on images: L_C < EFM < FM ≤ HFM?
    "hfmds-table4": {
        f"{regime}: {name}, seed {seed}": SEVERE | partition | term | {"seed": seed}
        for regime, partition in (("1 class", ONE), ("2 classes", TWO))
        for seed in (0, 1, 2)
        for name, term in TERMS.items()
    },
    "hfmds-warm": {f"warm, seed {seed}": WARM | {"rounds": 25, "seed": seed} for seed in (0, 1, 2)}
    | from_warm(0, BOUNDS | TERMS)
    | from_warm(1, BOUNDS | FM_AND_HFM)
    | from_warm(2, BOUNDS | FM_AND_HFM)
    | from_warm(0, OTHERS),
    # The main job's two halves on CIFAR-10; FedAvg, HFMDS and real images are in the studies above.
    "main-job-cifar10": {
        f"{regime}: {name}, seed {seed}": SEVERE | partition | method | {"seed": seed}
        for seed in (0, 1, 2)
        for regime, partition in (("1 class", ONE), ("2 classes", TWO))
        for name, method in (("HFMDS+FedPA", BOTH_BOUNDED), ("FedPA", BOTH_BOUNDED | {"method": "fedpa"}))
    },
    # Which setting is the paper's, by FedAvg's own column of table 2: 28.53, 45.31, 50.44.
    "hfmds-calibration": {
        f"{active} active, {scale}, {draw}: {name}": {
            "preset": "fedavg-cifar10",
            "rounds": 100,
            "active": active,
            "normalise": scale,
            "eval-every": 5,
        }
        | partition
        for active in (10, 20)
        for scale in ("data", "half")
        for draw, fewest in (("plain draw", 0), ("min-samples 10", 10))
        for name, partition in (
            ("Dirichlet 0.01", {"beta": 0.01, "min-samples": fewest}),
            ("Dirichlet 0.05", {"beta": 0.05, "min-samples": fewest}),
            ("2 classes", TWO),
        )
        if name != "2 classes" or not fewest
    },
    "main-job": {
        f"{name}, seed {seed}": MAIN | method | {"seed": seed} for seed in (0, 1, 2) for name, method in HALVES.items()
    },
    "main-job-two-classes": {
        f"{name}, seed {seed}": MAIN | TWO | method | {"seed": seed}
        for seed in (0, 1, 2)
        for name, method in HALVES.items()
    },
    "main-job-weights": {
        "λ_ge 0.5": MAIN | {"fedpa.lambda-ge": 0.5},
        "λ_ge 5": MAIN | {"fedpa.lambda-ge": 5},
        "λ_po 0": MAIN | {"fedpa.lambda-po": 0},
        "λ_po 0.1": MAIN | {"fedpa.lambda-po": 0.1},
        "α 0.3": MAIN | {"hfmds.alpha": 0.3},
        "α 0.7": MAIN | {"hfmds.alpha": 0.7},
        "reach 0.5": MAIN | {"fedpa.ad-reach": 0.5},
        "reach 2": MAIN | {"fedpa.ad-reach": 2},
    },
    "fedpa-mnist": {
        f"{name}, seed {seed}": {"preset": f"{preset}-mnist-reference", "seed": seed}
        for seed in (3, 4, 5)
        for name, preset in (("FedAvg", "fedavg"), ("FedPA", "fedpa"))
    },
    "sdafl-mnist": {
        "SDA-FL, seed 0": SDAFL,
        "SDA-FL, seed 1": SDAFL | {"seed": 1},
        "FedAvg, seed 0": SDAFL | FEDAVG,
        "FedAvg, seed 1": SDAFL | FEDAVG | {"seed": 1},
        "SDA-FL, labels forgotten, seed 0": SDAFL | {"sdafl.forget": True},
        "SDA-FL, ε 10, seed 0": SDAFL | {"sdafl.epsilon": 10},
        "FedGAN, seed 0": SDAFL | FEDGAN,
        "50 labels: SDA-FL": FEW_LABELS,
        "50 labels: FedAvg": FEW_LABELS | FEDAVG,
        "50 labels: Mixup": FEW_LABELS | {"method": "mixup"},
        "50 labels: FixMatch": FEW_LABELS | DIGITS | {"method": "fixmatch"},
        "50 labels: FixMatch+Mixup": FEW_LABELS | DIGITS | {"method": "fixmatch+mixup"},
    },
}


def without_absent_parts(settings: dict[str, object]) -> dict[str, object]:
    """The settings of a row without those of parts that its method does not have, which would be refused."""
    used = str(settings.get("method", "")).split("+")
    if used == [""]:
        return settings
    return {key: value for key, value in settings.items() if "." not in key or key.split(".")[0] in used}


def run(out: Path, settings: dict[str, object]) -> None:
    """Run one row in one process, unless it is finished; its output goes into a file beside it."""
    if (out / "summary.json").exists():
        return
    settings = without_absent_parts(settings)
    flags = [text for key, value in settings.items() for text in (f"--{key}", str(value))]
    command = [sys.executable, "-m", "raysim", "run", "--in-process", "--out", str(out), "--overwrite", *flags]
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(out.with_suffix(".log"), "w") as log:
        subprocess.run(command, stdout=log, stderr=log, check=True)


def each(lines: list[dict], key: str, digits: int) -> str:
    """What the rounds that report this have reported, one after another."""
    return ", ".join(f"{line[key]:.{digits}f}" for line in lines if line.get(key) is not None)


def nearest_psnr(summary: dict) -> float | None:
    """Of a GAN's images, with the nearest real ones."""
    return next((value for key, value in summary.get("privacy", {}).items() if key.endswith("psnr_nearest")), None)


def row(name: str, out: Path, window: int) -> str:
    """A finished run as a line of the table."""
    summary = json.loads((out / "summary.json").read_text())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    last, nearest = [100 * line["accuracy"] for line in lines[-window:]], nearest_psnr(summary)
    gflops = summary.get("gflops_per_client_round") or {}
    cells = [
        name,
        f"{statistics.mean(last):.2f}",
        f"{min(last):.1f} to {max(last):.1f}",
        each(lines, "psnr", 1) or (f"{nearest:.2f}" if nearest else ""),
        each(lines, "hfmds.recognised", 2),
        " + ".join(f"{gflops[name]:.2f}" for name in ("training", "hfmds") if name in gflops),
        f"{summary['seconds'] / 60:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--data", required=True, help="folder with the datasets")
    parser.add_argument("--out", type=Path, default=Path("runs/study"), help="folder for the runs")
    parser.add_argument("--at-once", type=int, default=2, help="runs at a time, each on one core")
    parser.add_argument("--table", action="store_true", help="only print the table of what is finished")
    arguments = parser.parse_args()
    rows, window = STUDIES[arguments.study], WINDOWS.get(arguments.study, WINDOW)
    outs = {name: arguments.out / f"{arguments.study}-{i:02d}" for i, name in enumerate(rows)}
    jobs: dict[str, Future] = {}

    def do(name: str, settings: dict[str, object]) -> None:
        if start := settings.get("start-from"):
            jobs[start].result()
            settings = settings | {"start-from": outs[start]}
        run(outs[name], settings | {"data": arguments.data})

    if not arguments.table:
        with ThreadPoolExecutor(arguments.at_once) as pool:
            for name, settings in rows.items():
                jobs[name] = pool.submit(do, name, settings)
            for job in jobs.values():
                job.result()
    measured = f"accuracy %, last {window} rounds | lowest to highest | PSNR dB | recognised"
    print(f"| run | {measured} | GFLOPs, training + synthesis | minutes |")
    print("|---|---|---|---|---|---|---|")
    for name, out in outs.items():
        if (out / "summary.json").exists():
            print(row(name, out, window))


if __name__ == "__main__":
    main()
