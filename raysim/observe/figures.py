"""The numbers of a round under the names that trackers show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def figures(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a round by name, without its own number and format; those of a dict as `terms/fedprox`."""
    flat = {key: value for key, value in line.items() if key not in ("format", "round")}
    for key, value in line.items():
        if isinstance(value, dict):
            flat |= {f"{key}/{name}": inner for name, inner in value.items()}
    return {name: float(value) for name, value in flat.items() if isinstance(value, int | float)}
