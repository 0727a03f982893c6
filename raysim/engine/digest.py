"""The digest of models and states: equal exactly where every floating-point array is equal bit for bit."""

import hashlib
from typing import Any

import numpy as np


def digest(trees: list[dict[str, Any]]) -> str:
    """SHA-256 over floating arrays (nested dicts too) sorted by name: name, dtype, shape, little-endian bytes."""
    sha = hashlib.sha256()
    for tree in trees:
        for name, value in sorted(_leaves(tree).items()):
            array = np.asarray(value)
            if np.issubdtype(array.dtype, np.floating):
                array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
                sha.update(f"{name}|{array.dtype.name}|{array.shape}|".encode())
                sha.update(array.tobytes())
    return sha.hexdigest()


def _leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in tree.items():
        found |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
