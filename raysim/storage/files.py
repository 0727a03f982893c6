"""Writing files so that a kill, a full disk or a loss of power at any moment leaves whole files behind."""

import errno
import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from raysim.errors import RaysimError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the disk while `path` is written into one line that says what to do about it."""
    try:
        yield
    except OSError as error:
        remedy = "free space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "put that right"
        # A run writes into its directory or one level below. Once it has a summary, only the report can be missing.
        run = next((folder for folder in path.parents[:2] if os.path.isfile(folder / "config.json")), None)
        again = "start the run again"
        if run:
            command = "report" if os.path.isfile(run / "summary.json") else "resume"
            again = f"`python -m raysim {command} {shlex.quote(str(run))}`"
        reason = error.strerror or error
        raise RaysimError(f"{path} cannot be written: {reason}; {remedy}, then {again}") from error


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of `path` in the end: readers see the old file or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        try:
            with open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)  # on a full disk it takes space that others need
            raise


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file by this content, or leave it as it is."""
    with replacing(path) as file:
        file.write(content)


def append_line(path: Path, line: dict[str, Any]) -> bytes:
    """Append a line of JSON, whole or not at all, and return its bytes."""
    content = left = json.dumps(line).encode() + b"\n"
    with writing(path), open(path, "ab", buffering=0) as file:
        whole = file.tell()
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            file.truncate(whole)  # readers rely on whole lines
            raise
    return content


def sync(path: Path) -> None:
    """Wait until a file's content is on the disk, or a folder's entries: a renamed file has its new name only then."""
    with writing(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some network file systems cannot sync a folder
                raise
        finally:
            os.close(descriptor)


def to_json(content: dict[str, Any] | list[Any]) -> bytes:
    """JSON for people: indented, with a final newline."""
    return json.dumps(content, indent=2).encode() + b"\n"
