"""Run directories in an object store: `--out s3://bucket/path`, `gs://…`, through pyarrow.fs.

A run works in a folder of this machine, its working copy. After every checkpoint, and at its end, what has changed
there is written to the store, in an order that leaves something whole at every moment: a checkpoint's files before the
manifest that names them, summary.json last. The store alone is enough to go on from: a resumed run begins by fetching
it. Credentials come from the environment, as each store's own tools take them; they are in no address and no file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
from pyarrow import fs as pa_fs

from raysim.config import RunConfig
from raysim.errors import InputError, RaysimError, one_line
from raysim.storage.remote_lease import RemoteLease
from raysim.storage.run_directory import check_directory, run_directory

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss")
OPTIONS = {"endpoint_override", "scheme", "region"}  # of an s3 address, after a question mark
SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_KEY")
CONNECT_SECONDS, REQUEST_SECONDS = 10.0, 60.0  # that one attempt may take
ATTEMPTS = 3
CHUNK = 2**24  # bytes that are copied at a time


def is_remote(path: object) -> bool:
    """Whether a path is an address in an object store."""
    return isinstance(path, str) and "://" in path


@contextmanager
def place_of(config: RunConfig) -> Iterator[tuple[Path, Mirror | None]]:
    """The folder that a run works in, checked; and its mirror, if --out is an address in an object store."""
    if config.out is None or not is_remote(config.out):
        yield run_directory(config), None
        return
    mirror = Mirror(config.out)
    with mirror.held():
        if config.resume or config.overwrite:
            mirror.fetch()
        elif mirror.names():
            raise InputError(
                f"--out {config.out} exists; choose another, add --resume to go on or --overwrite to replace it"
            )
        check_directory(config, mirror.folder)
        try:
            yield mirror.folder, mirror
        except BaseException:
            with suppress(RaysimError):  # what went wrong first is what counts
                mirror.sync()
            raise
        mirror.sync()


@contextmanager
def readable(path: str, file: str = "config.json") -> Iterator[Path]:
    """A folder with this file of a run directory: itself, or for an address in a store a copy."""
    if not is_remote(path):
        yield Path(path)
        return
    mirror = Mirror(path)
    try:
        mirror.fetch(file)
        yield mirror.folder
    finally:
        mirror.discard()


class Mirror:
    """A run directory in a store, and its working copy on this machine, `folder`."""

    def __init__(self, uri: str):
        self.uri = uri.rstrip("/")
        with self._talking():
            self.store, self.base = _open(self.uri)
        self.folder = Path(tempfile.mkdtemp(prefix="raysim-")) / PurePosixPath(self.base).name
        self.folder.mkdir()
        self.known: dict[str, tuple[int, int]] = {}  # what the store has -> size and time of the copy here
        self.lock = threading.Lock()  # checkpoints are written in a thread of their own
        self.lease: RemoteLease | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lease of the run directory, and remove the working copy if all of it is in the store."""
        try:
            with self._talking():
                self.lease = RemoteLease(self.store, self.base, self.uri)
                self.lease.take()
            yield
        finally:
            if self.lease:
                self.lease.release()
            if not self._changed():
                self.discard()

    def discard(self) -> None:
        """Remove the working copy."""
        shutil.rmtree(self.folder.parent, ignore_errors=True)

    def names(self) -> list[str]:
        """The files of the run directory, with their folder if they are in one; without those that begin with a dot."""
        with self._talking():
            found = self.store.get_file_info(pa_fs.FileSelector(self.base, allow_not_found=True, recursive=True))
        files = [info.path.removeprefix(f"{self.base}/") for info in found if info.type == pa_fs.FileType.File]
        if foreign := [name for name in files if not _is_plain(name)]:
            raise InputError(f"--out {self.uri}: raysim did not write its {foreign[0]!r}; choose another")
        return sorted(name for name in files if not PurePosixPath(name).name.startswith("."))

    def fetch(self, only: str = "") -> None:
        """Bring what the store has here, or one file of it."""
        for name in [only] if only in (names := self.names()) else [] if only else names:
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            with (
                self._talking(),
                self.store.open_input_stream(f"{self.base}/{name}") as source,
                open(path, "wb") as file,
            ):
                shutil.copyfileobj(source, file, CHUNK)
            self.known[name] = _stamp(path)

    def sync(self) -> None:
        """Write what has changed here to the store, and remove there what is gone here."""
        with self.lock, self._talking():
            if self.lease:
                self.lease.check()
            gone, changed = self.known.keys() - {*self._here()}, self._changed()
            # A summary means that the run is whole, so it goes before anything changes and comes after everything.
            for name in sorted(gone, key=_rank, reverse=True):
                if _rank(name) == SUMMARY:
                    self._remove(name)
            for name in sorted(changed, key=_rank):
                with suppress(FileNotFoundError):  # gone meanwhile: the next time it is among those to be removed
                    self._write(name, changed[name])
            for name in sorted(gone & self.known.keys(), key=_rank, reverse=True):
                self._remove(name)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _here(self) -> dict[str, tuple[int, int]]:
        """The files of the working copy, but for those that are being written and leases."""
        found: dict[str, tuple[int, int]] = {}
        for path in sorted(self.folder.rglob("*")):
            if not path.name.startswith("."):
                with suppress(FileNotFoundError):
                    found |= {path.relative_to(self.folder).as_posix(): _stamp(path)} if path.is_file() else {}
        return found

    def _changed(self) -> dict[str, tuple[int, int]]:
        return {name: stamp for name, stamp in self._here().items() if self.known.get(name) != stamp}

    def _write(self, name: str, stamp: tuple[int, int]) -> None:
        path = self.folder / name
        if path.suffix == ".jsonl":  # lines may be added right now: only whole ones count
            content = path.read_bytes()
            with self.store.open_output_stream(f"{self.base}/{name}") as target:
                target.write(content[: content.rfind(b"\n") + 1])
        else:
            with open(path, "rb") as file, self.store.open_output_stream(f"{self.base}/{name}") as target:
                shutil.copyfileobj(file, target, CHUNK)
        self.known[name] = stamp

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self.store.delete_file(f"{self.base}/{name}")
        del self.known[name]

    @contextmanager
    def _talking(self) -> Iterator[None]:
        """Turn an error of the store into one line."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            text = one_line(_without_secrets(str(error)))
            raise RaysimError(
                f"--out {self.uri}: {text}; check the address, the bucket and the credentials in the environment, then "
                f"start the run again, or `raysim resume {self.uri}` if it had begun"
            ) from None


MANIFEST, SUMMARY = 1, 2


def _rank(name: str) -> int:
    """What comes later when files are written, and earlier when they are removed."""
    if name == "summary.json":
        return SUMMARY
    return MANIFEST if name.startswith("checkpoints/round-") else 0


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _is_plain(name: str) -> bool:
    """Whether a name in a store is one that can be written here: of a file, or of one in a folder."""
    parts = name.split("/")
    return len(parts) <= 2 and all(part not in ("", ".", "..") and "\\" not in part for part in parts)


def _without_secrets(text: str) -> str:
    for secret in filter(None, map(os.environ.get, SECRETS)):
        text = text.replace(secret, "…")
    return text


def _open(uri: str) -> tuple[Any, str]:
    """The store behind an address, and the path in it."""
    parts = urlsplit(uri)
    if "@" in parts.netloc and not parts.scheme.startswith("abfs"):
        raise InputError("--out: leave credentials out of the address; they are read from the environment")
    path = f"{parts.netloc}/{parts.path.strip('/')}"
    if parts.scheme not in SCHEMES:
        raise InputError(f"--out {uri}: unknown kind of store; there are {', '.join(f'{s}://' for s in SCHEMES)}")
    if not parts.netloc or not parts.path.strip("/"):
        raise InputError(f"--out {uri}: give a bucket and a path in it, as in s3://bucket/runs/first")
    options = dict(parse_qsl(parts.query))
    if unknown := sorted(options.keys() - (OPTIONS if parts.scheme == "s3" else set())):
        raise InputError(
            f"--out {parts.scheme}://{path}: unknown option '{unknown[0]}' after the question mark; remove it"
        )
    if parts.scheme == "s3":
        return _s3(options), path
    if parts.scheme in ("gs", "gcs"):
        return pa_fs.GcsFileSystem(retry_time_limit=timedelta(seconds=REQUEST_SECONDS)), path
    return pa_fs.FileSystem.from_uri(uri)


def _s3(options: dict[str, str]) -> Any:
    address = options.get("endpoint_override") or os.environ.get(
        "AWS_ENDPOINT_URL_S3", os.environ.get("AWS_ENDPOINT_URL")
    )
    scheme, _, host = (address or "").rpartition("://")
    return pa_fs.S3FileSystem(
        endpoint_override=host or None,
        scheme=options.get("scheme") or scheme or "https",
        region=options.get("region") or os.environ.get("AWS_REGION", os.environ.get("AWS_DEFAULT_REGION")),
        connect_timeout=CONNECT_SECONDS,
        request_timeout=REQUEST_SECONDS,
        allow_delayed_open=True,  # one request for a small file, not three
        retry_strategy=pa_fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
    )
