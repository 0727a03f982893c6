"""Kills its own actor, or raises, for one client in one round."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from raysim.methods.base import Part, Upload
from raysim.settings import setting


@dataclass(frozen=True)
class Doomed(Part):
    """Dies once per file in `fuses` (it removes one before), raises ValueError without any."""

    fuses: str = setting("", "folder of fuses")
    client: int = setting(3, "the one that dies")
    round: int = setting(2, "when it dies")
    raises: bool = setting(False, "raise instead")
    server: bool = setting(False, "kill the server instead")
    nan: bool = setting(False, "give back a model that is not finite")

    def begin(self, client):
        if (client.id, client.t) != (self.client, self.round):
            return
        if self.raises:
            raise ValueError("this client is doomed")
        if self.fuses and not self.server and self._burn():
            os.kill(os.getpid(), signal.SIGKILL)

    def _burn(self) -> bool:
        """Whether there was a fuse left."""
        left = sorted(Path(self.fuses).iterdir())
        if left:
            left[0].unlink()
        return bool(left)

    def update(self, server, uploads):
        if self.server and server.t == self.round and (not self.fuses or self._burn()):
            os.kill(os.getpid(), signal.SIGKILL)

    def end(self, client):
        if self.nan and (client.id, client.t) == (self.client, self.round):
            client.model.weights[5] = float("nan")
        return Upload()
