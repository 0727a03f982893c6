"""Ray's object store where there is a Ray, and plain objects where there is none, by the same calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError

K = TypeVar("K")

LostObject = RayError  # what `fetch` raises where an object, or whoever had it, is gone


def put(value: Any) -> Any:
    """Store an object once for all processes, and return a reference to it; without Ray, the object itself."""
    return ray.put(value) if ray.is_initialized() else value


def fetch(reference: Any) -> Any:
    """Return the object behind a reference; anything else is returned as it is.

    Arrays fetched from the store are shared by every process of the node and read-only: they become tensors only
    through `to_device` (raysim/tensors.py), which copies.
    """
    return ray.get(reference) if isinstance(reference, ray.ObjectRef) else reference


def same_object(one: Any, other: Any) -> bool:
    """Whether two references, or objects where there is no Ray, are of the same object."""
    return one == other if isinstance(one, ray.ObjectRef) else one is other


def identity(reference: Any) -> object:
    """What equals that of no reference to another object, and does not keep the object in Ray's store."""
    return reference.hex() if isinstance(reference, ray.ObjectRef) else reference


def by_reference(references: Mapping[K, Any]) -> list[tuple[Any, list[K]]]:
    """Group keys by their references, so that an object that many share is fetched once."""
    found: dict[Any, tuple[Any, list[K]]] = {}
    for key, reference in references.items():
        identity = reference if isinstance(reference, ray.ObjectRef) else id(reference)
        found.setdefault(identity, (reference, []))[1].append(key)
    return list(found.values())
