"""Checkpoints: everything a run needs to go on after a round, in safetensors, Arrow and JSON with digests; no pickle.

A checkpoint is a manifest `round-NNNNN.json` and the files it names with their SHA-256. Files are written under a
temporary name, synced and renamed, the manifest last, so a kill, a full disk or a loss of power at any moment leaves
the earlier checkpoint whole. What did not change (a client's state, the shared dataset) is not written again: the
manifest names the older file.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from safetensors.numpy import load, save

from raysim.errors import RaysimError
from raysim.storage.run_directory import replacing, sync, write_atomically, writing

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
    metrics: str = ""  # the digest of the rounds' lines
    begun: dict | None = None  # what was done of the round after it, where that is between two exchanges


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


class _Hashed:
    """A file that knows the digest of what is written to it, so that nothing is read again."""

    closed = False  # pyarrow asks

    def __init__(self, file: BinaryIO):
        self.file, self.sha = file, hashlib.sha256()

    def write(self, content) -> None:
        self.sha.update(content)
        self.file.write(content)


class Checkpoints:
    """The checkpoints of one run. `identity` is what a run must share with a checkpoint to go on from it."""

    def __init__(self, folder: Path, identity: dict):
        self.folder, self.identity = folder, identity
        self._forget()

    def _forget(self) -> None:
        """Know of no checkpoint. What is known is of the last one that was written or read, and changes with it."""
        self.files: dict[str, str] = {}  # name -> digest
        self.where: dict[int, list] = {}  # client -> [file, its packed state]
        self.shared: dict[str, str] = {}  # part -> file
        self.kept: list[set[str]] = []  # the files of the last checkpoints, their manifests among them

    # -- writing -----------------------------------------------------------------------------------------------------

    def save(
        self, t: int, server: dict, states: dict[int, dict], shared: dict[str, tuple[int, pa.Table]], metrics: str = "",
        begun: dict | None = None,
    ) -> None:  # fmt: skip
        """After round t: the server's tree, states that changed, part -> (round it is from, table), metrics' digest.

        `begun` is what the simulation knows of the round after it, if that is in its exchanges.
        """
        if not self.kept:
            with writing(self.folder):
                self.folder.mkdir(exist_ok=True)
            sync(self.folder.parent)
        files, where, tables = dict(self.files), dict(self.where), dict(self.shared)
        tensors: dict[str, np.ndarray] = {}
        stamp = f"{t:05d}" if begun is None else f"{t:05d}-{sum(begun['passes'].values()):05d}"
        packed_server, server_file = pack(server, tensors, "server"), f"server-{stamp}.safetensors"
        files[server_file] = self._write(server_file, save(tensors))
        if states:
            name, tensors = f"states-{stamp}.safetensors", {}
            where |= {client: [name, pack(state, tensors, str(client))] for client, state in states.items()}
            files[name] = self._write(name, save(tensors))
        for part, (made, table) in shared.items():
            name = f"shared-{part}-{made:05d}.arrow"
            if tables.get(part) != name:
                files[name] = self._write_table(name, table)
                tables[part] = name
        used = sorted({server_file, *(name for name, _ in where.values()), *tables.values()})
        manifest = {
            "round": t,
            "begun": begun,
            "identity": self.identity,
            "files": {name: files[name] for name in used},
            "server": packed_server,
            "states": {str(client): place for client, place in where.items()},
            "shared": tables,
            "metrics": metrics,
        }
        name, text = f"round-{stamp}.json", json.dumps(manifest)
        # Without power a file whose folder was not synced may be gone, however well it was synced itself: so the files
        # come before the manifest that counts on them, and the manifest before what it replaces is removed.
        sync(self.folder)
        write_atomically(self.folder / name, f"{_sha(text.encode())}\n{text}\n".encode())
        sync(self.folder)
        self.files, self.where, self.shared = manifest["files"], where, tables
        self.kept = [*self.kept, {name, *used}][-KEPT:]
        self._tidy()

    def _write(self, name: str, content: bytes) -> str:
        write_atomically(self.folder / name, content)
        return _sha(content)

    def _write_table(self, name: str, table: pa.Table) -> str:
        """Straight to its file: it may be as large as the memory that is left."""
        with replacing(self.folder / name) as file:
            hashed = _Hashed(file)
            with pa.ipc.new_file(hashed, table.schema) as writer:
                writer.write_table(table)
        return hashed.sha.hexdigest()

    def _tidy(self) -> None:
        """Remove what none of the last checkpoints names, the manifests first: they name the others."""
        named = set().union(*self.kept)
        with writing(self.folder):
            for path in sorted(self.folder.iterdir(), key=lambda path: path.suffix != ".json"):
                if path.name not in named:
                    path.unlink()

    # -- reading -----------------------------------------------------------------------------------------------------

    def load(self, refuse: Callable[[str], None] = lambda reason: None) -> Checkpoint | None:
        """The newest whole checkpoint, or None; `refuse` is told of each damaged one that was passed over."""
        self._forget()
        manifests = self.folder.glob("round-*.json")
        for path in sorted(manifests, key=_when, reverse=True):
            try:
                return self._read(path)
            except Damaged as damage:
                refuse(f"checkpoint {path.name}: {damage}; using the one before it")
        return None

    def _read(self, path: Path) -> Checkpoint:
        digest, _, text = self._content(path.name).partition(b"\n")
        if not text.endswith(b"\n") or _sha(text[:-1]).encode() != digest:
            raise Damaged("its digest does not match")
        manifest = json.loads(text)
        if differing := [key for key, value in self.identity.items() if manifest["identity"].get(key) != value]:
            raise RaysimError(f"{path} was made with another {' and '.join(differing)}: the run cannot go on here")
        tensors, tables = {}, {}
        for name, digest in manifest["files"].items():
            content = self._content(name)
            if _sha(content) != digest:
                raise Damaged(f"the digest of {name} does not match")
            if name.endswith(".arrow"):
                tables[name] = pa.ipc.open_file(content).read_all()
            else:
                tensors[name] = load(content)
        by_file: dict[str, list[tuple[int, dict]]] = {}
        for client, (name, packed) in manifest["states"].items():
            by_file.setdefault(name, []).append((int(client), unpack(packed, tensors[name])))
        self.files, self.shared = manifest["files"], manifest["shared"]
        self.where = {int(client): place for client, place in manifest["states"].items()}
        self.kept = [{path.name, *self.files}]
        return Checkpoint(
            manifest["round"],
            unpack(manifest["server"], tensors[path.name.replace("round", "server").replace("json", "safetensors")]),
            list(by_file.values()),
            {part: (_made(name), tables[name]) for part, name in self.shared.items()},
            manifest["metrics"],
            manifest["begun"],
        )

    def _content(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise Damaged(f"{name} cannot be read ({error.strerror})") from None


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _when(manifest: Path) -> list[int]:
    """Its round, and the passes done of the one after it."""
    return [int(number) if number.isdigit() else -1 for number in manifest.stem.split("-")[1:]]


def _made(name: str) -> int:
    """The round in a shared dataset's file name."""
    return int(name.removesuffix(".arrow").rpartition("-")[2])
