"""The hash by which two runs are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from raysim.state import OwnArray, short


def digest(trees: list[dict[str, Any]]) -> str:
    """SHA-256 over floating arrays (nested dicts too) sorted by name: name, dtype, shape, little-endian bytes."""
    sha = hashlib.sha256()
    for tree in trees:
        for name, value in sorted(_leaves(tree), key=lambda leaf: leaf[0]):  # two may have one name: in order of keys
            array = np.asarray(value.array if isinstance(value, OwnArray) else value)
            if np.issubdtype(array.dtype, np.floating):
                array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
                sha.update(f"{name}|{array.dtype.name}|{array.shape}|".encode(errors="backslashreplace"))
                sha.update(array.tobytes())
    return sha.hexdigest()


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, dict | list | tuple):
            yield from _leaves(value, f"{prefix}{_text(key)}.")
        else:
            yield f"{prefix}{_text(key)}", value


def _text(key: Any) -> str:
    return short(key) if isinstance(key, int | tuple) else str(key)
