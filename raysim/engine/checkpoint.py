"""Checkpoints: everything a run needs to go on after a round, in safetensors, Arrow and JSON with digests; no pickle.

A checkpoint is a manifest `round-NNNNN.json` and the files it names with their SHA-256. Files are written under a
temporary name, synced and renamed, the manifest last, so a kill at any moment leaves the earlier checkpoint whole. What
did not change (a client's state, the shared dataset) is not written again: the manifest names the older file.
"""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from safetensors.numpy import load, save

from raysim.engine.record import write_atomically
from raysim.errors import RaysimError

KEPT = 2  # checkpoints; the one before the last is used where the last is damaged
TENSOR = "tensor"  # marks an array in the JSON of a tree


class Damaged(Exception):
    """A checkpoint that is not what was written; says which file and why."""


@dataclass
class Checkpoint:
    """What was kept after round `round`."""

    round: int
    server: dict  # weights and the parts' state
    states: list[list[tuple[int, dict]]] = field(default_factory=list)  # clients with their states, file by file
    shared: dict[str, tuple[int, pa.Table]] = field(default_factory=dict)  # part -> round it is from, table


def pack(tree, tensors: dict[str, np.ndarray], at: str):
    """Nested dicts and lists as JSON, their arrays moved to `tensors` under names that begin with `at`."""
    if isinstance(tree, np.ndarray | np.generic):
        tensors[at] = np.asarray(tree, order="C")
        return {TENSOR: at}
    if isinstance(tree, dict):
        return {key: pack(value, tensors, f"{at}/{key}") for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [pack(value, tensors, f"{at}/{i}") for i, value in enumerate(tree)]
    return tree


def unpack(tree, tensors: dict[str, np.ndarray]):
    """The way back; tuples have become lists."""
    if isinstance(tree, dict):
        return tensors[tree[TENSOR]] if tree.keys() == {TENSOR} else {k: unpack(v, tensors) for k, v in tree.items()}
    return [unpack(value, tensors) for value in tree] if isinstance(tree, list) else tree


class Checkpoints:
    """The checkpoints of one run. `identity` is what a run must share with a checkpoint to go on from it."""

    def __init__(self, folder: Path, identity: dict):
        self.folder, self.identity = folder, identity
        self.files: dict[str, str] = {}  # name -> digest, of what is there and whole
        self.where: dict[int, list] = {}  # client -> [file, its packed state]
        self.shared: dict[str, str] = {}  # part -> file

    # -- writing -----------------------------------------------------------------------------------------------------

    def save(self, t: int, server: dict, states: dict[int, dict], shared: dict[str, tuple[int, pa.Table]]) -> None:
        """After round t: the server's tree, the states that changed, and part -> (round it is from, table)."""
        self.folder.mkdir(exist_ok=True)
        tensors: dict[str, np.ndarray] = {}
        packed_server = pack(server, tensors, "server")
        self._write(f"server-{t:05d}.safetensors", save(tensors))
        if states:
            name, tensors = f"states-{t:05d}.safetensors", {}
            self.where |= {client: [name, pack(state, tensors, str(client))] for client, state in states.items()}
            self._write(name, save(tensors))
        for part, (made, table) in shared.items():
            name = f"shared-{part}-{made:05d}.arrow"
            if self.shared.get(part) != name:
                self._write_table(name, table)
                self.shared[part] = name
        used = {f"server-{t:05d}.safetensors", *(name for name, _ in self.where.values()), *self.shared.values()}
        manifest = {
            "round": t,
            "identity": self.identity,
            "files": {name: self.files[name] for name in sorted(used)},
            "server": packed_server,
            "states": {str(client): place for client, place in self.where.items()},
            "shared": self.shared,
        }
        text = json.dumps(manifest)
        write_atomically(self.folder / f"round-{t:05d}.json", f"{_sha(text.encode())}\n{text}\n".encode())
        self._tidy()

    def _write(self, name: str, content: bytes) -> None:
        write_atomically(self.folder / name, content)
        self.files[name] = _sha(content)

    def _write_table(self, name: str, table: pa.Table) -> None:
        """Straight to its file: it may be as large as the memory that is left."""
        temporary = self.folder / f".{name}.tmp"
        with pa.OSFile(str(temporary), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        with open(temporary, "rb") as file:
            self.files[name] = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        os.replace(temporary, self.folder / name)

    def _tidy(self) -> None:
        """Remove what neither of the last checkpoints names."""
        manifests = sorted(self.folder.glob("round-*.json"))
        for old in manifests[:-KEPT]:
            old.unlink()
        named = {name for path in manifests[-KEPT:] for name in json.loads(path.read_text().split("\n")[1])["files"]}
        for path in self.folder.iterdir():
            if path.name not in named and not path.name.startswith("round-"):
                path.unlink()
        self.files = {name: digest for name, digest in self.files.items() if name in named}

    # -- reading -----------------------------------------------------------------------------------------------------

    def load(self, refuse: Callable[[str], None] = lambda reason: None) -> Checkpoint | None:
        """The newest whole checkpoint, or None; `refuse` is told of each damaged one that was passed over."""
        for path in sorted(self.folder.glob("round-*.json"), reverse=True):
            try:
                return self._read(path)
            except Damaged as damage:
                refuse(f"checkpoint {path.name}: {damage}; using the one before it")
        return None

    def _read(self, path: Path) -> Checkpoint:
        digest, _, text = path.read_text(errors="replace").partition("\n")
        text = text.removesuffix("\n")
        if _sha(text.encode()) != digest:
            raise Damaged("its digest does not match")
        manifest = json.loads(text)
        if differing := [key for key, value in self.identity.items() if manifest["identity"].get(key) != value]:
            raise RaysimError(f"{path} was made with another {' and '.join(differing)}: the run cannot go on here")
        for name, digest in manifest["files"].items():
            self._verify(name, digest)
        read = {name: self.folder / name for name in manifest["files"]}
        tensors = {name: load(file.read_bytes()) for name, file in read.items() if file.suffix == ".safetensors"}
        by_file: dict[str, list[tuple[int, dict]]] = {}
        for client, (name, packed) in manifest["states"].items():
            by_file.setdefault(name, []).append((int(client), unpack(packed, tensors[name])))
        self.files = dict(manifest["files"])
        self.where = {int(client): place for client, place in manifest["states"].items()}
        self.shared = manifest["shared"]
        return Checkpoint(
            manifest["round"],
            unpack(manifest["server"], tensors[f"server-{manifest['round']:05d}.safetensors"]),
            list(by_file.values()),
            {part: (_made(name), pa.ipc.open_file(str(read[name])).read_all()) for part, name in self.shared.items()},
        )

    def _verify(self, name: str, digest: str) -> None:
        try:
            with open(self.folder / name, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise Damaged(f"{name} cannot be read ({error.strerror})") from None
        if found != digest:
            raise Damaged(f"the digest of {name} does not match")


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _made(name: str) -> int:
    """The round in a shared dataset's file name."""
    return int(name.removesuffix(".arrow").rpartition("-")[2])
