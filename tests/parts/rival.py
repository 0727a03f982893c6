"""Wants what committee wants."""

from dataclasses import dataclass

from raysim.methods.base import Part


@dataclass(frozen=True)
class Rival(Part):
    """Routes everyone to the first model."""

    def route(self, server, t, clients):
        return dict.fromkeys(clients, 0)
