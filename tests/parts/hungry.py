"""Takes much memory for a while, so that two clients at once are too many for a node."""

import time
from dataclasses import dataclass

import numpy as np

from raysim.methods.base import Part
from raysim.settings import setting


@dataclass(frozen=True)
class Hungry(Part):
    """Every client's local training begins with so much memory held so long."""

    megabytes: int = setting(0, "how much")
    seconds: float = setting(2.0, "how long")

    def begin(self, client):
        if self.megabytes:
            held = np.ones(self.megabytes * 2**20, np.uint8)
            time.sleep(self.seconds)
            del held
