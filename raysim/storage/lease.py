"""The lease of a run directory: one driver works there at a time, and nothing is written or removed without it.

A lease is a file with its owner, `.lease`. It is only ever created where there is none, which the file system lets one
driver do, also over NFS. A dead owner's lease is not removed by whoever wants the next one, since two such drivers
could remove each other's. Its successor is a file named by the digest of the dead lease; the last of such a chain holds
the run directory. Its owner then makes the chain short again by putting its own lease in the first place. A crash after
any of these steps leaves a chain whose last owner is dead.

All it needs is reading, creating what is not there, replacing and removing small files.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from raysim.errors import InputError, RaysimError
from raysim.storage.files import to_json, writing

NAME = ".lease"
NAMES = re.compile(r"\.lease(-[0-9a-f]{32}(\.tmp)?)?")  # with the successors, and files that are being written
BEAT_SECONDS = 20.0  # between an owner's signs of life
STALE_SECONDS = 300.0  # without one, after which an owner counts as dead if its process cannot be looked up from here
TRIES = 50  # to take a lease that others take and give back in the same moments

NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}  # what file systems without hard links say


@dataclass(frozen=True)
class Owner:
    """A process that holds a lease. Process ids are used again, so its start counts too."""

    host: str
    place: str  # the boot and the process namespace in which its id means this process
    pid: int
    started: str  # in the kernel's ticks since the boot, which setting the clock does not change
    since: float
    token: str  # no two leases are equal

    @classmethod
    def here(cls) -> "Owner":
        """This process, from now on."""
        pid = os.getpid()
        return cls(socket.gethostname(), _place(), pid, _started(pid) or "", time.time(), secrets.token_hex(16))

    @classmethod
    def read(cls, content: bytes) -> "Owner | None":
        """The owner in a lease; None if a power failure or another program left something else there."""
        try:
            owner = cls(**json.loads(content))
            return owner if isinstance(owner.pid, int) and 0 <= owner.since < 1e11 else None
        except (TypeError, ValueError, RecursionError):
            return None

    def is_alive(self) -> bool | None:
        """Whether the process is there; None if it cannot be looked up from here."""
        return _started(self.pid) == self.started if self.place and self.place == _place() else None

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host}, since {since}"


def _place() -> str:
    """Where a process id means this process; empty where the kernel does not say, so that only signs of life count."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """When a process of this machine started; None if it is gone, or a zombie, which writes nothing any more."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # the name before may hold blanks
    except OSError:
        return None
    return None if words[0] in "ZX" else words[19]


class Lease:
    """This process's lease of a run directory. `held` takes it and gives it back."""

    def __init__(self, folder: Path):
        self.folder, self.path = folder, folder / NAME
        self.content = to_json(asdict(Owner.here()))
        self.created: list[Path] = []  # the folder and those above it that were not there, the outermost first
        self.ended = threading.Event()

    def take(self) -> None:
        """Take it, or raise an InputError that says who has it."""
        with writing(self.path):
            for attempt in range(TRIES):
                if attempt:
                    time.sleep(secrets.randbelow(20) / 1000)
                if not self.folder.is_dir():
                    missing = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
                    self.folder.mkdir(parents=True, exist_ok=True)
                    self.created = missing[::-1] or self.created
                with suppress(FileNotFoundError):  # another driver has just given it back, and removed its folder
                    if self._try_to_take():
                        break
            else:
                raise InputError(f"{self.folder} is being taken by several drivers at once; start only one")
        threading.Thread(target=self._beat, daemon=True).start()

    def _try_to_take(self) -> bool:
        mark = self._write()
        try:
            path = _end_of_chain(self.folder, now=mark.stat().st_mtime)
            if not self._create(path, mark):
                return False
            if not self._is_in_chain():
                # Whoever had shortened the chain has given the lease back since.
                path.unlink(missing_ok=True)
                return False
            if path != self.path:
                os.replace(mark, self.path)
        finally:
            mark.unlink(missing_ok=True)
        for entry in list(self.folder.iterdir()):
            if entry != self.path and NAMES.fullmatch(entry.name):  # of no use to anyone: ours is in the first place
                entry.unlink(missing_ok=True)
        return True

    def _write(self) -> Path:
        """Our lease in a file of its own. Its time is by the clock of the file server, as that of other leases."""
        path = self.folder / f"{NAME}-{secrets.token_hex(16)}.tmp"
        with open(path, "xb") as file:
            file.write(self.content)
            file.flush()
            os.fsync(file.fileno())
        return path

    def _create(self, path: Path, whole: Path) -> bool:
        """Put our lease, which is in the file `whole`, to this path, unless there is one."""
        try:
            os.link(whole, path)
        except FileExistsError:
            return _read(path) == self.content  # NFS may send a request again that was carried out
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            try:
                with open(path, "xb") as file:
                    file.write(self.content)
            except FileExistsError:
                return False
        return True

    def _is_in_chain(self) -> bool:
        path = self.path
        while (content := _read(path)) is not None:
            if content == self.content:
                return True
            path = _successor(self.folder, content)
        return False

    def _beat(self) -> None:
        """Show that we are alive, by the file's time."""
        while not self.ended.wait(BEAT_SECONDS):
            with suppress(OSError):
                if _read(self.path) == self.content:
                    os.utime(self.path)

    def check(self) -> None:
        """Raise a RaysimError if another driver has taken the lease, because it saw no sign of life of this one."""
        with suppress(OSError):  # whatever is written next will say it
            if (found := _read(self.path)) not in (None, self.content):
                other = Owner.read(found or b"") or "another driver"
                raise RaysimError(f"{self.folder} was taken over by {other}: this run was silent for too long")

    def release(self) -> None:
        """Give it back, if it is still ours."""
        self.ended.set()
        with suppress(OSError):
            if _read(self.path) == self.content:
                self.path.unlink()
            for folder in reversed(self.created):
                folder.rmdir()  # if nothing was written


@contextmanager
def held(folder: Path) -> Iterator[Lease]:
    """Hold the lease of a run directory, which is created if need be; an InputError says who else holds it."""
    lease = Lease(folder)
    lease.take()
    try:
        yield lease
    finally:
        lease.release()


def refuse_if_held(folder: Path) -> None:
    """Raise an InputError if a process of this machine works in the folder; touches nothing."""
    with suppress(FileNotFoundError):  # it was given back in this moment
        _end_of_chain(folder, now=float("inf"))


def _end_of_chain(folder: Path, now: float) -> Path:
    """Where the next lease goes; an InputError if the last one's owner is alive."""
    path = folder / NAME
    if path.is_dir():
        raise InputError(f"{path} is a directory, and should be a file of raysim's; remove it if no driver works there")
    while (content := _read(path)) is not None:
        owner = Owner.read(content)
        if owner and (here := owner.is_alive()) is not None:
            if here:
                raise InputError(f"{folder} is in use by {owner}; wait for it or end it, or choose another directory")
        elif now - path.stat().st_mtime < STALE_SECONDS:
            raise InputError(
                f"{folder} is in use by {owner or f'an unknown driver ({path})'}; wait for it or end it. If it is dead "
                f"already, try again {STALE_SECONDS / 60:g} minutes after its end"
            )
        path = _successor(folder, content)
    return path


def _successor(folder: Path, content: bytes) -> Path:
    return folder / f"{NAME}-{hashlib.sha256(content).hexdigest()[:32]}"


def _read(path: Path) -> bytes | None:
    """The content of a lease; None where there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
