"""The classifiers by name: a file for each family of networks, which declares its models in `MODELS`."""

from functools import cache

from raysim import discovery
from raysim.models.classifiers.base import Model, Shape

__all__ = ["Model", "Shape", "all_models"]


@cache
def all_models() -> dict[str, Model]:
    """Return every model by name, file after file."""
    found: dict[str, Model] = {}
    for module in discovery.modules(__name__, __path__):
        if twice := found.keys() & module.MODELS.keys():
            raise TypeError(f"{module.__name__}: another file declares '{min(twice)}' too; give it another name")
        found |= module.MODELS
    return found
