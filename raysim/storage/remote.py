"""Run directories in an object store: `--out s3://bucket/path`, `gs://…`, through pyarrow.fs.

A run works in a folder of this machine, its working copy. After every checkpoint, and at its end, what has changed
there is written to the store, in an order that leaves something whole at every moment: a checkpoint's files before the
manifest that names them, summary.json last. The store alone is enough to go on from: a resumed run begins by fetching
it. Credentials come from the environment, as each store's own tools take them; they are in no address and no file.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import fs as pa_fs

from raysim.config import RunConfig
from raysim.config.addresses import is_remote, parsed
from raysim.engine.ending import ending
from raysim.engine.working_copies import WorkingCopy, remove_ownerless, where_it_is
from raysim.errors import InputError, RaysimError, one_line
from raysim.storage.remote_lease import RemoteLease
from raysim.storage.run_directory import check_directory, run_directory

SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_KEY")
CONNECT_SECONDS, REQUEST_SECONDS = 10.0, 60.0  # that one attempt may take
ATTEMPTS = 3
CHUNK = 2**24  # bytes that are copied at a time


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
def readable(where: str, path: str, *files: str) -> Iterator[Path]:
    """A folder with these files of a run directory: itself, or for an address in a store a copy.

    `where` is the setting or the command that the path was given to.
    """
    if not is_remote(path):
        yield Path(path)
        return
    mirror = Mirror(path, where)
    try:
        mirror.fetch(files)
        yield mirror.folder
    finally:
        mirror.discard()


class Mirror:
    """A run directory in a store, and its working copy on this machine, `folder`."""

    def __init__(self, uri: str, where: str = "--out"):
        """`where`: the setting or the command that the address was given to."""
        self.uri, self.where = uri.rstrip("/"), where
        with self._talking():
            self.store, self.base = _open(where, self.uri)
        remove_ownerless()
        self.copy = WorkingCopy(self.uri, PurePosixPath(self.base).name)
        self.folder = self.copy.folder
        self.known: dict[str, tuple[int, int]] = {}  # what the store has -> size and time of the copy here
        self.lock = threading.Lock()  # checkpoints are written in a thread of their own
        self.lease: RemoteLease | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lease of the run directory, and remove the working copy if all of it is in the store.

        Otherwise the line that ends the run says where it is.
        """
        try:
            with self._talking():
                self.lease = RemoteLease(self.store, self.base, self.uri)
                self.lease.take()
            yield
        except RaysimError as error:
            if self._changed():
                error.add_note(where_it_is(str(self.folder)))
            raise
        finally:
            if self.lease:
                self.lease.release()
            if not self._changed():
                self.discard()
            elif ending.run_directory == self.uri:
                ending.run_directory = str(self.folder)  # for the last line of a run that was interrupted

    def discard(self) -> None:
        """Remove the working copy."""
        self.copy.discard()

    def names(self) -> list[str]:
        """The files of the run directory, with their folder if they are in one; without those that begin with a dot."""
        with self._talking():
            found = self.store.get_file_info(pa_fs.FileSelector(self.base, allow_not_found=True, recursive=True))
        files = [info.path.removeprefix(f"{self.base}/") for info in found if info.type == pa_fs.FileType.File]
        if foreign := [name for name in files if not _is_plain(name)]:
            raise InputError(f"{self.where} {self.uri}: raysim did not write its {foreign[0]!r}; choose another")
        return sorted(name for name in files if not PurePosixPath(name).name.startswith("."))

    def fetch(self, only: Sequence[str] = ()) -> None:
        """Bring what the store has here, or some files of it."""
        for name in [name for name in self.names() if not only or name in only]:
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
            again = f"start the run again, or `raysim resume {self.uri}` if it had begun"
            raise RaysimError(
                f"{self.where} {self.uri}: {text}; check the address, the bucket and the credentials in the "
                f"environment, then {again if self.where == '--out' else 'try again'}"
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


def _open(where: str, uri: str) -> tuple[Any, str]:
    """The store behind an address, and the path in it."""
    address = parsed(where, uri)
    if address.scheme == "s3":
        return _s3(address.options), address.path
    if address.scheme in ("gs", "gcs"):
        return pa_fs.GcsFileSystem(retry_time_limit=timedelta(seconds=REQUEST_SECONDS)), address.path
    return pa_fs.FileSystem.from_uri(uri)


def _s3(options: dict[str, str]) -> Any:
    address = options.get("endpoint_override") or os.environ.get(
        "AWS_ENDPOINT_URL_S3", os.environ.get("AWS_ENDPOINT_URL")
    )
    if "@" in (address or ""):  # errors would repeat it
        raise InputError("AWS_ENDPOINT_URL: leave credentials out of it; AWS_ACCESS_KEY_ID and its like are for them")
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
