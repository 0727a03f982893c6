"""The ways to deal samples to clients: one file each, named after the partition, holding one `Partitioner`.

A file put into this folder is found by its name, and its settings become settings of every run.
"""

import importlib
from collections.abc import Mapping
from dataclasses import Field
from functools import cache
from typing import Any

from raysim import discovery
from raysim.data.partitions.base import Partition, Partitioner
from raysim.definitions import is_own
from raysim.errors import InputError
from raysim.settings import setting_fields

__all__ = ["Partition", "Partitioner", "describe", "from_settings", "names", "own_settings", "parse", "partition_class"]


@cache
def names() -> tuple[str, ...]:
    """Return the names of all partitions: first those without settings, then the others, each by name.

    >>> names()[:3]
    ('iid', 'classes', 'dirichlet')
    """
    found = discovery.files(__path__)
    return tuple(sorted(found, key=lambda name: (bool(setting_fields(_class(name))), name)))


def partition_class(name: str) -> type[Partitioner]:
    """Return the Partitioner of this name."""
    if name not in names():
        raise InputError(f"partition: unknown kind {name!r}; choose one of {', '.join(names())}")
    return _class(name)


def describe(name: str) -> str:
    """Return one line about a partition: the first of its docstring."""
    return (partition_class(name).__doc__ or "").strip().splitlines()[0]


def own_settings() -> dict[str, Field[Any]]:
    """Return the settings of all partitions by name, as fields to be declared again."""
    found: dict[str, Field[Any]] = {}
    for name in names():
        for key, field in setting_fields(_class(name)).items():
            if found.setdefault(key, field) is not field:
                raise TypeError(f"partition {name}: another partition has a setting '{key}'; give it another name")
    return found


def from_settings(settings: Mapping[str, object], name: str | None = None) -> Partitioner:
    """Return the partition that a run's settings choose, or the one of this name, with its own settings among them.

    >>> from_settings({"partition": "dirichlet", "beta": 0.1}).label()
    'dirichlet 0.1'
    """
    chosen = name or str(settings["partition"])
    if is_own(chosen):
        from raysim.data.own_partition import OwnPartition

        return OwnPartition(settings["partition"])  # type: ignore[arg-type] # with the object, if it is one
    cls = partition_class(chosen)
    return cls(**{key: settings[key] for key in setting_fields(cls) if key in settings})


def short_forms() -> list[str]:
    """Return an example of every partition's short form, as `--partitions` takes it."""
    return [f"{name}:{_class(name).example}".rstrip(":") for name in names()]


def parse(text: str) -> tuple[str, dict[str, object]]:
    """Return the label that a short form has in tables, and the settings it stands for.

    >>> parse("classes:2")
    ('classes 2', {'partition': 'classes', 'classes_per_client': '2'})
    """
    name, _, value = text.partition(":")
    own = _class(name).parse(value) if name in names() else None
    if own is None:
        raise InputError(f"--partitions: '{text}' is none of {', '.join(short_forms())}")
    return f"{name} {value}".strip(), {"partition": name} | own


def _class(name: str) -> type[Partitioner]:
    return discovery.the_class(importlib.import_module(f"{__name__}.{name}"), Partitioner)
