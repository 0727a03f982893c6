"""The TOML files of this folder."""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

Content = dict[str, Any]
Settings = dict[str, Any]

_FOLDER = Path(__file__).parent


def names(of_tables: bool) -> list[str]:
    """Return the files of the papers, or those of their tables and figures: tables first, by number."""
    found = [path.stem for path in _FOLDER.glob("*.toml")]
    wanted = [name for name in found if bool(re.search("-(table|fig)[0-9]", name)) == of_tables]
    return sorted(wanted, key=lambda name: (name.partition("-")[0], "-fig" in name, len(name), name))


@cache
def read(name: str) -> Content:
    """Return what is in a file."""
    return tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def flat(content: Content) -> Settings:
    """Return settings with those of parts under names such as `fedprox.mu`.

    >>> flat({"method": "fedprox", "fedprox": {"mu": 1.0}})
    {'method': 'fedprox', 'fedprox.mu': 1.0}
    """
    settings: Settings = {}
    for key, value in content.items():
        settings |= {f"{key}.{own}": v for own, v in value.items()} if isinstance(value, dict) else {key: value}
    return settings
