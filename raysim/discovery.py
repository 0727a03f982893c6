"""Finds what is added as a file: a method, a partition, a loader of datasets or a model is one file in its folder."""

import importlib
import pkgutil
from collections.abc import Iterable
from types import ModuleType
from typing import TypeVar

Base = TypeVar("Base")


def files(folder: Iterable[str]) -> list[str]:
    """The names of the files in a package's `__path__`, sorted; `base` holds what they have in common."""
    return sorted(module.name for module in pkgutil.iter_modules(folder) if not module.ispkg and module.name != "base")


def modules(package: str, folder: Iterable[str]) -> list[ModuleType]:
    """The files of a package, imported, in the order of their names."""
    return [importlib.import_module(f"{package}.{name}") for name in files(folder)]


def classes(module: ModuleType, base: type[Base]) -> list[type[Base]]:
    """The classes derived from `base` that this file defines."""
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    return [value for value in own if issubclass(value, base)]


def the_class(module: ModuleType, base: type[Base]) -> type[Base]:
    """The one class derived from `base` that this file defines."""
    found = classes(module, base)
    if len(found) != 1:
        raise TypeError(f"{module.__name__} defines {len(found)} kinds of {base.__name__}; it must define one")
    return found[0]
