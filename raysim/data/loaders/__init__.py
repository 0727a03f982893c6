"""The ways to find a dataset: one file each. They are imported when a dataset is loaded, or when all are listed."""

from functools import cache

from raysim import discovery
from raysim.data.loaders.base import Loader, Request

__all__ = ["Loader", "Request", "all_loaders", "catalogue"]


@cache
def all_loaders() -> tuple[Loader, ...]:
    """Return every loader, in the order in which they are asked."""
    found = [discovery.the_class(module, Loader)() for module in discovery.modules(__name__, __path__)]
    return tuple(sorted(found, key=lambda loader: loader.turn))


def catalogue() -> list[tuple[str, str]]:
    """Return every dataset that has a name, with one line about it and how to get it."""
    return [item for loader in all_loaders() for item in loader.catalogue().items()]
