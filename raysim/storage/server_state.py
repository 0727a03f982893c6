"""The parts' server state that a run ended with, in the form in which checkpoints have it, as one safetensors file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from raysim.state import OwnArray, pack, unpack
from raysim.storage.checkpoints import MALFORMED
from raysim.storage.files import write_atomically
from raysim.storage.formats import DamagedFile

FILE = "server_state.safetensors"
TREE = "tree"  # in the file's metadata: the state as JSON, with the names of its arrays


def write_state(folder: Path, state: dict[str, dict[str, Any]]) -> None:
    """Write the state by part into a run directory; a state with nothing in it has no file."""
    if not any(state.values()):
        return
    tensors: dict[str, np.ndarray] = {}
    tree = json.dumps(pack(state, tensors, "server"))
    write_atomically(folder / FILE, save(tensors, metadata={TREE: tree}))


def read_state(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the state by part from a run directory, tensors as arrays; empty where it has no such file."""
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
            state = unpack(json.loads(file.metadata()[TREE]), tensors)
    except (OSError, SafetensorError, *MALFORMED) as error:
        raise DamagedFile(path, str(error)) from None
    if not (isinstance(state, dict) and all(isinstance(own, dict) for own in state.values())):
        raise DamagedFile(path, "it is no state by part")
    return arrays_of(state)


def arrays_of(value: Any) -> Any:
    """Return a state, or what is in one, with all its arrays and tensors as arrays."""
    if isinstance(value, dict):
        return type(value)((key, arrays_of(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return type(value)(map(arrays_of, value))
    return value.array if isinstance(value, OwnArray) else value
