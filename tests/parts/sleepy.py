"""Waits a different time in every run, so that answers arrive in a different order."""

import random
import time
from dataclasses import dataclass

from raysim.methods.base import Part
from raysim.settings import setting


@dataclass(frozen=True)
class Sleepy(Part):
    """Sleeps before training, by the operating system's randomness."""

    most: float = setting(0.05, "longest nap in seconds", minimum=0)

    def begin(self, client):
        time.sleep(random.SystemRandom().uniform(0, self.most))
