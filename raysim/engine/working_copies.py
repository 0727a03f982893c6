"""Working copies: folders of this machine in which a run works whose directory is in an object store.

Each is in a folder of its own with a file that says of which address it is a copy. Its process holds a lock on that
file, which the kernel takes back when the process is gone, however it ended: then whoever comes next removes it.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

MARK = ".raysim-copy-of"


class WorkingCopy:
    """A folder `name` for the copy of what has this address, until it is discarded or its process ends."""

    def __init__(self, address: str, name: str):
        around = Path(tempfile.mkdtemp(prefix="raysim-"))  # with mode 0700
        self.folder = around / name
        self.folder.mkdir()
        # Under its name once it is locked: nobody else ever sees it without an owner while we live.
        begun = around / f"{MARK}.tmp"
        self.mark: IO[str] = open(begun, "w", encoding="utf-8")  # noqa: SIM115 - open for as long as the copy is ours
        self.mark.write(address)
        self.mark.flush()
        with suppress(OSError):  # some file systems have no locks: there a copy stays
            _lock(self.mark)
            os.rename(begun, around / MARK)

    def discard(self) -> None:
        """Remove it."""
        shutil.rmtree(self.folder.parent, ignore_errors=True)
        self.mark.close()


def address_of(folder: str) -> str | None:
    """Return the address of which this folder is a working copy; None if it is none."""
    try:
        return (Path(folder).parent / MARK).read_text(encoding="utf-8") or None
    except (OSError, ValueError):
        return None


def where_it_is(folder: str) -> str:
    """Return what the line that ends a run says of a working copy that stays."""
    return f"its working copy is {folder}, until the next run in a store removes it"


def remove_ownerless() -> None:
    """Remove the working copies of this user whose processes are gone."""
    for mark in Path(tempfile.gettempdir()).glob(f"raysim-*/{MARK}"):
        around = mark.parent
        with suppress(OSError):  # another user's, in use, or just being removed by somebody else
            if not around.is_symlink() and around.stat().st_uid == os.getuid():
                with open(mark, encoding="utf-8") as file:
                    _lock(file)
                    shutil.rmtree(around, ignore_errors=True)


def _lock(file: IO[str]) -> None:
    """Lock a file for as long as it is open; an OSError if somebody else has."""
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
