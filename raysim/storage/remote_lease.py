"""The lease of a run directory in an object store: one driver works there at a time.

pyarrow offers no write that fails where there is something already, so a lease is an object of the driver's own,
`.lease-TOKEN`, with who it is; its time, by the store's clock, is renewed every 20 s. A driver writes its own and then
looks for others: where another is alive, it takes its own back. Of two that come in the same moment at least one sees
the other, since what is written is listed at once (S3, GCS and Azure promise that); perhaps both do, and both give way.
A driver whose lease is gone was taken for dead; it looks before every time it writes. Between looking and writing there
is a moment in which two could write: after 5 minutes of silence, that is the risk.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from pyarrow import fs as pa_fs

from raysim.errors import InputError, RaysimError
from raysim.storage.files import to_json
from raysim.storage.lease import BEAT_SECONDS, STALE_SECONDS, Owner

NAME = re.compile(r"\.lease-[0-9a-f]{32}")
TRIES = 3


class RemoteLease:
    """This process's lease of a run directory in a store."""

    def __init__(self, store: Any, base: str, uri: str):
        self.store, self.base, self.uri = store, base, uri
        owner = Owner.here()
        self.path, self.content = f"{base}/.lease-{owner.token}", to_json(asdict(owner))
        self.ended = threading.Event()

    def take(self) -> None:
        """Take it, or raise an InputError that says who has it."""
        for attempt in range(TRIES):
            self._write()
            alive, dead = self._others()
            if alive is None:
                for path in dead:
                    self._delete(path)
                threading.Thread(target=self._beat, daemon=True).start()
                return
            self._delete(self.path)
            if attempt < TRIES - 1:
                time.sleep(0.2 + secrets.randbelow(1000) / 1000)
        raise InputError(
            f"{self.uri} is in use by {alive}; wait for it or end it. If it is dead already, try again "
            f"{STALE_SECONDS / 60:g} minutes after its end"
        )

    def check(self) -> None:
        """Raise a RaysimError if another driver has taken the lease, because it saw no sign of life of this one."""
        if self.store.get_file_info(self.path).type != pa_fs.FileType.File:
            self.ended.set()
            raise RaysimError(f"{self.uri} was taken over by another driver: this run was silent for too long")

    def release(self) -> None:
        """Give it back."""
        if not self.ended.is_set():
            self.ended.set()
            with suppress(OSError, pa.ArrowException):
                self._delete(self.path)

    def _others(self) -> tuple[str | None, list[str]]:
        """Who else is alive there, and the leases of those who are not."""
        found = {info.path: info for info in self.store.get_file_info(pa_fs.FileSelector(self.base))}
        now = found[self.path].mtime_ns
        dead: list[str] = []
        for path, info in found.items():
            if path == self.path or not NAME.fullmatch(info.base_name):
                continue
            try:
                with self.store.open_input_stream(path) as file:
                    owner = Owner.read(file.read())
            except FileNotFoundError:  # given back in this moment
                continue
            here = owner.is_alive() if owner else None
            if here or (here is None and now - info.mtime_ns < STALE_SECONDS * 1e9):
                return str(owner or "an unknown driver"), dead
            dead.append(path)
        return None, dead

    def _beat(self) -> None:
        """Show that we are alive, by the object's time."""
        while not self.ended.wait(BEAT_SECONDS):
            with suppress(OSError, pa.ArrowException):
                if self.store.get_file_info(self.path).type == pa_fs.FileType.File and not self.ended.is_set():
                    self._write()

    def _write(self) -> None:
        with self.store.open_output_stream(self.path) as file:
            file.write(self.content)

    def _delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self.store.delete_file(path)
