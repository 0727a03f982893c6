"""Counts nothing, for one client in one round: what leaving it out comes to."""

from dataclasses import dataclass

from raysim.methods.base import Part, Upload
from raysim.settings import setting


@dataclass(frozen=True)
class Weightless(Part):
    """A client whose weight is 0."""

    client: int = setting(3, "the one")
    round: int = setting(2, "when")

    def weight(self, client):
        return 0.0 if (client.id, client.t) == (self.client, self.round) else None

    def end(self, client):
        return Upload()
