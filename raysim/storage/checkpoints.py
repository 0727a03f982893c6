"""Checkpoints: everything a run needs to go on after a round, in safetensors, Arrow and JSON with digests; no pickle.

A checkpoint is a manifest `round-NNNNN.json` and the files it names with their SHA-256. Files are written under a
temporary name, synced and renamed, the manifest last, so a kill, a full disk or a loss of power at any moment leaves
the earlier checkpoint whole. What did not change (a client's state, the shared dataset) is not written again: the
manifest names the older file.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from safetensors import SafetensorError
from safetensors.numpy import load, save

from raysim.engine.checkpoint import Checkpoint
from raysim.errors import RaysimError
from raysim.state import pack, unpack
from raysim.storage.files import replacing, sync, write_atomically, writing
from raysim.storage.formats import MANIFEST_FORMAT, check_format

KEPT = 2  # checkpoints; the one before the last is used where the last is damaged
STAMP = r"\d{5,}(-\d{5,})?"  # a round, and the passes that were done of the next one
TABLE = re.compile(
    r"shared-\w+-(\d{5,})(-[0-9a-f]{16})?\.arrow"
)  # of a round, and by its content: a round may have two
FILE_NAME = re.compile(rf"round-{STAMP}\.json|(server|states)-{STAMP}\.safetensors|{TABLE.pattern}")
# What reading content raises that is not what was written, although its digest matches.
MALFORMED = (
    AttributeError, LookupError, TypeError, ValueError, RecursionError, SafetensorError, pa.ArrowException,
)  # fmt: skip


class Damaged(Exception):
    """A file of a checkpoint is missing or not as it was written; the message says which and why."""


class _Hashed:
    """A file that computes the digest of what is written to it, so that it need not be read again."""

    closed = False  # pyarrow looks at it

    def __init__(self, file: BinaryIO):
        self.file, self.sha = file, hashlib.sha256()

    def write(self, content: bytes) -> None:
        self.sha.update(content)
        self.file.write(content)


class Checkpoints:
    """The checkpoints of one run. A run goes on only from a checkpoint that has the same `identity`.

    Settings in the identity that a checkpoint does not have, because raysim got them later, count as their defaults.
    A folder in which another run keeps checkpoints is refused: each would replace and remove the other's.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]):
        self.folder, self.identity = folder, identity
        self._forget()

    def _forget(self) -> None:
        """Start without any checkpoint. The attributes describe the last one that was written or read."""
        self.files: dict[str, str] = {}  # name -> digest
        self.where: dict[int, list[Any]] = {}  # client -> [file, its packed state]
        self.shared: dict[str, str] = {}  # part -> file
        self.kept: list[str] = []  # the manifests of the last checkpoints
        self.named: dict[str, set[str]] = {}  # manifest of this run in the folder -> the files it names

    # -- writing -----------------------------------------------------------------------------------------------------

    def save(
        self,
        t: int,
        server: dict[str, Any],
        states: dict[int, dict[str, Any]],
        shared: dict[str, tuple[int, str, pa.Table]],
        metrics: str = "",
        begun: dict[str, Any] | None = None,
        stopped: dict[str, Any] | None = None,
    ) -> None:
        """Write the checkpoint after round t.

        `server` is its tree of arrays, `states` are those of clients that changed since the last checkpoint, `shared`
        is part -> (round it is from, its digest, table), `metrics` the digest of the rounds' lines, `begun` what was
        done of the next round, if the run is between two of its exchanges, and `stopped` why the run was ended early.
        """
        if not self.kept:
            with writing(self.folder):
                self.folder.mkdir(exist_ok=True)
            sync(self.folder.parent)
            self.named = self._named_files()
        files, where, tables = dict(self.files), dict(self.where), dict(self.shared)
        tensors: dict[str, np.ndarray] = {}
        stamp = _stamp(t, begun)
        packed_server, server_file = pack(server, tensors, "server"), f"server-{stamp}.safetensors"
        files[server_file] = self._write(server_file, save(tensors))
        if states:
            name, tensors = f"states-{stamp}.safetensors", {}
            where |= {client: [name, pack(state, tensors, str(client))] for client, state in states.items()}
            files[name] = self._write(name, save(tensors))
        for part, (made, digest, table) in shared.items():
            name = f"shared-{part}-{made:05d}-{digest[:16]}.arrow"
            if tables.get(part) != name:
                files[name] = self._write_table(name, table)
                tables[part] = name
        used = {name: files[name] for name in sorted({server_file, *(n for n, _ in where.values()), *tables.values()})}
        manifest = {
            "format": MANIFEST_FORMAT,
            "round": t,
            "begun": begun,
            "identity": self.identity,
            "files": used,
            "server": packed_server,
            "states": {str(client): place for client, place in where.items()},
            "shared": tables,
            "metrics": metrics,
            "stopped": stopped,
        }
        name = f"round-{stamp}.json"
        self._write_manifest(name, manifest)
        self.files, self.where, self.shared = used, where, tables
        self.kept = [*(kept for kept in self.kept if kept != name), name][-KEPT:]
        self.named[name] = self.named.get(name, set()) | used.keys()  # one of this name may have been there before
        self._tidy()

    def _write(self, name: str, content: bytes) -> str:
        write_atomically(self.folder / name, content)
        return _sha(content)

    def _write_table(self, name: str, table: pa.Table) -> str:
        """Write straight to the file: the table may be as large as the memory that is left."""
        with replacing(self.folder / name) as file:
            hashed = _Hashed(file)
            with pa.ipc.new_file(hashed, table.schema) as writer:
                writer.write_table(table)
        return hashed.sha.hexdigest()

    def _write_manifest(self, name: str, manifest: dict[str, Any]) -> None:
        # When the power fails, a file may be lost although it was synced itself, if its folder was not. So the files
        # are on the disk before the manifest that names them, and the manifest before the older files are removed.
        text = json.dumps(manifest)
        sync(self.folder)
        write_atomically(self.folder / name, f"{_sha(text.encode())}\n{text}\n".encode())
        sync(self.folder)

    def _tidy(self) -> None:
        """Remove older checkpoints of this run, manifests last, since they say which files are ours.

        Whatever else has a name like theirs stays: the folder may be a link to a place that others use. What a write
        that was cut has left gets replaced when its round is done again.
        """
        needed = set().union(*(self.named[manifest] for manifest in self.kept))
        with writing(self.folder):
            for manifest in [name for name in self.named if name not in self.kept]:
                for name in [*sorted(self.named[manifest] - needed), manifest]:
                    if not (self.folder / name).is_dir():
                        (self.folder / name).unlink(missing_ok=True)
                del self.named[manifest]

    # -- reading -----------------------------------------------------------------------------------------------------

    def load(self, refuse: Callable[[str], None] = lambda reason: None) -> Checkpoint | None:
        """The newest whole checkpoint, or None; `refuse` is called with the reason for each damaged one before it."""
        self._forget()
        self.named = self._named_files()
        paths = sorted(self._manifests(), key=_when, reverse=True)
        for path in paths:
            try:
                return self._read(path)
            except (Damaged, *MALFORMED) as error:
                damage = error if isinstance(error, Damaged) else "its content is not that of a checkpoint"
                last = "there is none before it, so the run starts again at round 1"
                refuse(f"checkpoint {path.name}: {damage}; {last if path == paths[-1] else 'using the one before it'}")
        return None

    def _manifests(self) -> list[Path]:
        return [path for path in self.folder.glob("round-*.json") if FILE_NAME.fullmatch(path.name)]

    def _named_files(self) -> dict[str, set[str]]:
        """The whole manifests in the folder, with the files they name; a RaysimError if one is another run's."""
        found = {}
        for path in self._manifests():
            with suppress(Damaged, *MALFORMED):
                found[path.name] = {*self._read_manifest(path)["files"]}
        return found

    def _read(self, path: Path) -> Checkpoint:
        """A checkpoint from its manifest. Nothing of it is known to this object unless it is whole."""
        manifest = self._read_manifest(path)
        tensors, tables = self._read_files(manifest["files"])
        by_file: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        for client, (name, packed) in manifest["states"].items():
            by_file.setdefault(name, []).append((int(client), unpack(packed, tensors[name])))
        shared = {part: (_made(name), tables[name]) for part, name in manifest["shared"].items()}
        server_file = path.name.replace("round", "server").replace("json", "safetensors")
        server = unpack(manifest["server"], tensors[server_file])
        self.files, self.shared = manifest["files"], manifest["shared"]
        self.where = {int(client): place for client, place in manifest["states"].items()}
        self.kept = [path.name]
        return Checkpoint(
            manifest["round"], server, list(by_file.values()), shared, manifest["metrics"], manifest["begun"],
            manifest.get("stopped"),
        )  # fmt: skip

    def _read_manifest(self, path: Path) -> dict[str, Any]:
        """Its content, if it is whole, of a format we know and of this run."""
        digest, _, text = self._content(path.name).partition(b"\n")
        if not text.endswith(b"\n") or _sha(text[:-1]).encode() != digest:
            raise Damaged("its digest does not match")
        manifest = json.loads(text)
        check_format(path, manifest, MANIFEST_FORMAT)
        if path.name != f"round-{_stamp(manifest['round'], manifest['begun'])}.json":
            raise Damaged("it is of another round than its name says")
        if foreign := [name for name in manifest["files"] if not FILE_NAME.fullmatch(name)]:
            raise Damaged(f"it names {foreign[0]!r}, which no checkpoint has")
        made = manifest["identity"]
        if differing := [key for key, value in self.identity.items() if made.get(key) != value]:
            how = "by another run" if "run" in differing else f"with another {' and '.join(differing)}"
            raise RaysimError(f"{path} was made {how}: this run cannot go on here")
        return manifest

    def _read_files(self, digests: dict[str, str]) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, pa.Table]]:
        """The arrays and the tables in these files, by file name."""
        tensors, tables = {}, {}
        for name, digest in digests.items():
            content = self._content(name)
            if _sha(content) != digest:
                raise Damaged(f"the digest of {name} does not match")
            if name.endswith(".arrow"):
                tables[name] = pa.ipc.open_file(content).read_all()
            else:
                tensors[name] = load(content)
        return tensors, tables

    def _content(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise Damaged(f"{name} cannot be read ({error.strerror})") from None


def files_of_run(folder: Path, config: Mapping[str, Any]) -> set[str]:
    """The names in a folder of checkpoints that belong to the run with this config.json."""
    any_run, names = Checkpoints(folder, {}), set[str]()
    for path in any_run._manifests():
        with suppress(Damaged, RaysimError, *MALFORMED):
            manifest = any_run._read_manifest(path)
            if manifest["identity"]["run"] == config["run"]:
                names |= {path.name, *manifest["files"]}
    return names


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _stamp(t: int, begun: dict[str, Any] | None) -> str:
    """The part of file names that says when a checkpoint was made."""
    return f"{t:05d}" if begun is None else f"{t:05d}-{sum(begun['passes'].values()):05d}"


def _when(manifest: Path) -> list[int]:
    """What checkpoints are ordered by: the round, and the passes done of the next one."""
    return [int(number) if number.isdigit() else -1 for number in manifest.stem.split("-")[1:]]


def _made(name: str) -> int:
    """The round in a shared dataset's file name."""
    if (found := TABLE.fullmatch(name)) is None:
        raise Damaged(f"it names {name!r} as a shared dataset")
    return int(found[1])
