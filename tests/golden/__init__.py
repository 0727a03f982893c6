"""Golden hashes: what a tiny run of every method ends in, kept per kind of device.

    make golden        computes them here and writes them under this machine's fingerprint

A restructuring must leave them as they are. A change that is meant to alter results writes them again, and says so in
CHANGELOG.md. Results depend on the processor in their last bits, so each kind has a file of its own.
"""

import json
import platform
import re
from pathlib import Path

from raysim import methods
from raysim.config import resolve
from raysim.data import load
from raysim.data.synthetic_tables import tables_digest
from raysim.methods.base import can_fuse
from raysim.training.device import fingerprint, prepare_torch
from tests.methods.tiny import settings_of
from tests.simulate import configure, simulate

FOLDER = Path(__file__).parent
FUSE = 3  # the cohort has 4 clients: a group of three and one of one


def device() -> dict[str, object]:
    """What a run records as its device, and which processor it is: kernels are chosen by that too."""
    found = fingerprint(prepare_torch(resolve([("golden", {})])))
    return found | {"processor": _processor()}


def _processor() -> str:
    """Vendor, family and model as Linux names them; elsewhere what Python knows."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "unknown"
    facts = dict(re.findall(r"^(vendor_id|cpu family|model)\s*: (.*)$", text, re.MULTILINE))
    return " ".join(facts.values()) or "unknown"


def path_of(device: dict[str, object]) -> Path:
    """The file with this device's hashes, whether or not it is there."""
    words = " ".join(f"{key} {value}" for key, value in device.items() if value is not None)
    return FOLDER / f"{re.sub(r'[^a-z0-9.+]+', '-', words.lower())}.json"


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


def hashes(settings: dict[str, object]) -> dict[str, str | None]:
    """What summary.json would say of this run."""
    result = simulate(load("shapes", train_size=120, test_size=50), privacy=0, **settings)
    return {
        "model_sha256": result.model_sha256,
        "server_state_sha256": result.server_state_sha256,
        "synthetic_sha256": tables_digest(list(result.shared.values())),
    }


def write() -> Path:
    """Compute every hash on this machine and keep it."""
    here = device()
    content = {"device": here, "hashes": {name: hashes(settings) for name, settings in runs().items()}}
    path_of(here).write_text(json.dumps(content, indent=2) + "\n")
    return path_of(here)
