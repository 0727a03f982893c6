"""Golden runs: what a tiny run of every method ends in, in hashes and in figures.

    make golden        computes them here and writes them under this machine's fingerprint

A restructuring must leave the hashes as they are. A change that is meant to alter results writes them again, and says
so in CHANGELOG.md. Where arithmetic is another (`raysim.training.arithmetic`), last bits are others too, and figures
are compared instead.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from raysim import methods
from raysim.config import resolve
from raysim.data import load
from raysim.data.synthetic_tables import tables_digest
from raysim.engine.simulation import Result
from raysim.methods.base import can_fuse
from raysim.training.device import fingerprint, prepare_torch
from tests.methods.tiny import settings_of
from tests.simulate import configure, simulate

FOLDER = Path(__file__).parent
FUSE = 3  # the cohort has 4 clients: a group of three and one of one
TEST_IMAGES = 50
# How far figures of other arithmetic may be from those recorded, relative to them. With every instruction set from
# SSE4.1 to AVX-512 they were up to 2e-4 off; with a learning rate that is 1 % wrong, some are 1.5e-3 off or more.
TOLERANCE = 1e-3

Content = dict[str, Any]  # of a golden file: its device, and by run `hashes` and `figures`


def device() -> dict[str, object]:
    """What a run records as its device."""
    return fingerprint(prepare_torch(resolve([("golden", {})])))


def path_of(device: dict[str, object]) -> Path:
    """The file to write for this device."""
    words = " ".join(f"{key} {value}" for key, value in device.items() if value is not None)
    return FOLDER / f"{re.sub(r'[^a-z0-9.+]+', '-', words.lower())}.json"


@cache
def golden(exact: bool) -> Content | None:
    """The golden file of this machine's fingerprint, if there is one; if it need not be `exact`, else any."""
    files = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    here = device()
    return next((file for file in files if file["device"] == here), None if exact else files[0])


def runs() -> dict[str, dict[str, object]]:
    """Name -> settings: every method by itself and the main job's pair, also fused where that is written."""
    wanted = {method: settings_of(*method.split("+")) for method in [*methods.names(), "hfmds+fedpa"]}
    wanted["fedbn on fedpa-cnn"] = settings_of("fedbn", model="fedpa-cnn")  # which has batch-norm
    found = {}
    for method, settings in wanted.items():
        found[method] = settings
        if all(map(can_fuse, configure(**settings).parts)):
            found[f"{method} --fuse {FUSE}"] = settings | {"fuse": FUSE}
    return found


def ended(settings: dict[str, object]) -> Result:
    """The end of a golden run with these settings."""
    return simulate(load("shapes", train_size=120, test_size=TEST_IMAGES), privacy=0, **settings)


def hashes(result: Result) -> dict[str, str | None]:
    """What summary.json would say of this run."""
    return {
        "model_sha256": result.model_sha256,
        "server_state_sha256": result.server_state_sha256,
        "synthetic_sha256": tables_digest(list(result.shared.values())),
    }


def figures(result: Result) -> dict[str, float]:
    """The figures of its last round: accuracy, losses, and whatever the method reports."""
    last = result.history[-1]
    terms = {f"terms/{name}": value for name, value in last.terms.items()}
    return {"accuracy": last.accuracy, "loss": last.loss, "train_loss": last.train_loss} | terms | last.reported


def apart(found: dict[str, float], recorded: dict[str, float]) -> list[str]:
    """The figures that are further from those recorded than rounding can be, each in words."""
    if found.keys() != recorded.keys():
        return [f"other figures: {sorted(found.keys() ^ recorded.keys())}"]
    return [
        f"{name} {found[name]}, not {value}"
        for name, value in recorded.items()
        if not abs(found[name] - value) <= _tolerated(name, value)
    ]


def _tolerated(name: str, value: float) -> float:
    """How far a figure may be from this value: a share of the test images by one image, and others relative to it."""
    return 1.01 / TEST_IMAGES if name == "accuracy" else TOLERANCE * abs(value)


def differences(name: str, result: Result) -> list[str]:
    """What is not as the golden run of this name: its hashes where arithmetic is the same, and its figures."""
    exact = golden(exact=True)
    found = apart(figures(result), golden(exact=False)["figures"][name])
    if exact:
        found += [f"{key} {value}" for key, value in hashes(result).items() if exact["hashes"][name][key] != value]
    return found


def write() -> Path:
    """Compute every golden run on this machine and keep what it ends in."""
    here = device()
    results = {name: ended(settings) for name, settings in runs().items()}
    content: Content = {
        "device": here,
        "hashes": {name: hashes(result) for name, result in results.items()},
        "figures": {name: figures(result) for name, result in results.items()},
    }
    path_of(here).write_text(json.dumps(content, indent=2) + "\n")
    return path_of(here)
