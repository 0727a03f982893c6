"""Cases with a part of one's own (tests/parts/improviser.py): states, uploads and reports are drawn by the seed."""

import json
import random
from pathlib import Path

from raysim.cli import main
from tests.fuzz.cases import FIXED, words

SMALLEST = FIXED | {
    "method": "tests.parts.improviser", "model": "mlp", "clients": 4, "active": 3, "rounds": 2, "train_size": 40,
    "test_size": 20, "image_size": 8, "batch_size": 10, "privacy": 0, "client_retries": 0,
}  # fmt: skip


def own_part_case(seed: int, folder: Path) -> list[str]:
    """A tiny run with such a part; every setting that decides how its states and uploads travel is drawn."""
    draw = random.Random(seed)
    values = SMALLEST | {
        "out": folder / "run", "improviser.draws": seed, "seed": seed % 1000, "fuse": draw.choice([1, 1, 2]),
        "weighting": draw.choice(["samples", "uniform"]), "on_client_error": draw.choice(["retry", "skip", "stop"]),
        "rounds": draw.choice([1, 2, 2, 3]), "partition": draw.choice(["iid", "dirichlet"]),
        "evaluation": draw.choice(["global", "global", "clients"]), "privacy": draw.choice([0, 0, 0, 8]),
    }  # fmt: skip
    return words(values)


def ends_elsewhere(line: list[str], folder: Path) -> str | None:
    """What is wrong with a run that ended well, if it is stopped after its first round and resumed; None: nothing."""
    whole = json.loads((folder / "run" / "summary.json").read_text())
    at = line.index("--out") + 1
    again = [*line[:at], str(folder / "again"), *line[at + 1 :]]
    again[again.index("--rounds") + 1] = "1"
    codes = [main(again), main(["resume", str(folder / "again"), "--rounds", str(whole["rounds"])])]
    if codes != [0, 0]:
        return f"stopped after round 1 and resumed it ends with {codes}"
    resumed = json.loads((folder / "again" / "summary.json").read_text())
    names = ("model_sha256", "server_state_sha256", "synthetic_sha256", "final_accuracy")
    return next((f"resumed it has another {name}" for name in names if resumed[name] != whole[name]), None)
