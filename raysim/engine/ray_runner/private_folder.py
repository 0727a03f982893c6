"""A folder for Ray's files that nobody else can enter. Ray's own default, /tmp/ray, is open to every user of a machine.

Whoever can write there can move a session away and put sockets of his own in its place.
"""

import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from raysim.errors import InputError

MARKER = "made-by-raysim"  # the file by which we know a folder of ours again
RAY = "r"  # Ray opens its own directory to everybody (chmod 777); it lies in ours, which stays shut

LONGEST_SOCKET = 107  # bytes: the kernel's limit
LONGEST_BELOW = "/raysim-12345678/r/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"


def make() -> Path:
    """A new folder with a name nobody can guess; Ray's directory is its `RAY`.

    Not in $XDG_RUNTIME_DIR: that is a small part of the memory, and Ray writes objects there that do not fit into its.
    """
    problems = []
    for base in dict.fromkeys(_bases()):
        if problem := _problem(base):
            problems.append(f"{base} {problem}")
            continue
        folder = Path(tempfile.mkdtemp(prefix="raysim-", dir=base))  # with mode 0700
        (folder / MARKER).touch(mode=0o600)
        return folder
    raise InputError(
        f"no place for Ray's files: {', '.join(problems)}; set TMPDIR to a folder of your own with a short path"
    )


def is_ours(folder: Path) -> bool:
    """Whether `make` made it: a directory, not a link, that is ours alone and has our marker."""
    try:
        found, marker = os.lstat(folder), os.lstat(folder / MARKER)
    except OSError:
        return False
    private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
    return private and stat.S_ISREG(marker.st_mode) and found.st_uid == marker.st_uid == os.getuid()


def remove(folder: Path) -> None:
    """Delete a folder that `make` made, following no links; anything else is left alone."""
    if not is_ours(folder):
        return
    for _ in range(20):  # a process that is just ending may still write
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


def _bases() -> list[str]:
    """Where it may lie, best first, without links: what RAY_TMPDIR and TMPDIR name, and what is always there."""
    named = os.environ.get("RAY_TMPDIR")
    return [os.path.realpath(base) for base in (named, tempfile.gettempdir(), "/tmp") if base]


def _problem(base: str) -> str:
    """Why a folder there would not do; nothing if it would."""
    if len(os.fsencode(base + LONGEST_BELOW)) > LONGEST_SOCKET:
        return f"is longer than the {LONGEST_SOCKET - len(LONGEST_BELOW)} bytes that leave room for Ray's sockets"
    for above in (Path(base), *Path(base).parents):
        try:
            found = os.lstat(above)
        except OSError as error:
            return f"cannot be used ({error.strerror})"
        others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
        if others_write or found.st_uid not in (0, os.getuid()):
            return "can be moved by other users" if str(above) == base else f"can be moved by who may write to {above}"
    return "" if os.access(base, os.W_OK | os.X_OK) else "cannot be written"
