"""Goes wrong on purpose, for one client in one round: dies, raises, finds no memory or a broken device, hangs, or gives
back nonsense.

`sum`, `each` and `rows` are uploads of a wrong shape. That of the sum could be added to the others'.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from raysim.methods.base import Part, Upload
from raysim.settings import setting

SHAPES = {"sum": ((4, 3), (3,)), "each": ((5,), (6,)), "rows": ((7, 2), (7, 3))}  # usual, wrong


@dataclass(frozen=True)
class Doomed(Part):
    """Goes wrong once per file in `fuses`, removing one each time; without a folder always, but then it never dies."""

    how: Literal["dies", "raises", "memory", "device", "hangs", "stops", "nan", "sum", "each", "rows"] = setting(
        "dies", "what happens"
    )
    fuses: str = setting("", "folder of fuses")
    client: int = setting(3, "the one it happens to")
    round: int = setting(2, "when")
    server: bool = setting(False, "the server dies instead")

    def begin(self, client):
        if self.server or self.how in ("nan", *SHAPES) or not self._now(client):
            return
        if self.how == "raises":
            raise ValueError("this client is doomed")
        if self.how == "memory":
            raise torch.OutOfMemoryError("no room on this GPU")
        if self.how == "device":
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        while self.how == "hangs":
            pass
        if self.fuses:
            os.kill(os.getpid(), signal.SIGSTOP if self.how == "stops" else signal.SIGKILL)

    def update(self, server, uploads):
        if self.server and server.t == self.round and self._burn():
            if self.how == "memory":
                raise torch.OutOfMemoryError("no room on the server's GPU")
            os.kill(os.getpid(), signal.SIGKILL)

    def end(self, client):
        if self.how == "nan" and self._now(client):
            client.model.weights[5] = float("nan")
        if self.how not in SHAPES:
            return Upload()
        usual, wrong = SHAPES[self.how]
        return Upload(**{self.how: {"thing": torch.ones(wrong if self._now(client) else usual)}})

    def _now(self, client) -> bool:
        return (client.id, client.t) == (self.client, self.round) and self._burn()

    def _burn(self) -> bool:
        """Whether there is a fuse left; it is gone then."""
        if not self.fuses:
            return True
        left = sorted(Path(self.fuses).iterdir())
        if left:
            left[0].unlink()
        return bool(left)
