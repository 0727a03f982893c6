"""What the papers' presets and sweeps resolve to, in the form in which `settings.json` records it.

Defaults stand in the record once. A preset, and the rows of a sweep together, have what differs from the defaults; a
row has what the other rows do not have. Where a change is meant, `python -m tests.papers` writes the record anew.
"""

import json
from pathlib import Path
from typing import Any

from raysim import methods
from raysim.config import RunConfig
from raysim.experiments import grid
from raysim.papers import presets, sweeps
from raysim.settings import as_dict

from ..config.words import from_words

RECORD = Path(__file__).parent / "settings.json"
Settings = dict[str, Any]


def defaults() -> Settings:
    """Return the default of every setting that decides a result, of the methods too."""
    found = {key: value for key, value in as_dict(RunConfig()).items() if key not in RunConfig.operational()}
    for name in methods.names():
        found |= _of_parts(methods.expand(name)[0])
    return dict(sorted(found.items()))


def of_preset(name: str) -> Settings:
    """Return what a preset resolves to, with its settings for methods other than its own."""
    found = from_words("--preset", name).settings()
    return _changed(found) | {key: value for key, value in presets()[name].settings.items() if key not in found}


def of_sweep(name: str) -> dict[str, Settings]:
    """Return what the rows of a sweep resolve to: under "" its seeds and what all rows have, then each row's own.

    Runs of a row differ in their seed only, so that of one seed stands for all.
    """
    seeds = sweeps()[name].seeds
    runs = grid.from_words("sweep", [name, *(["--seeds", str(seeds[0])] if seeds else [])]).runs
    rows = {run.row: _changed(run.alone.settings()) for run in runs}
    first, *others = rows.values()
    shared = {key: value for key, value in first.items() if all(row.get(key) == value for row in others)}
    own = {row: {key: value for key, value in found.items() if key not in shared} for row, found in rows.items()}
    return {"": {"seeds": list(seeds)} | shared} | own


def write() -> Path:
    """Write the record, a line for each preset and each row, and return its path."""
    lines = {"defaults": defaults()} | {f"preset {name}": of_preset(name) for name in presets()}
    for name in sweeps():
        lines |= {f"sweep {name}: {row}": found for row, found in of_sweep(name).items()}
    text = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in lines.items())
    RECORD.write_text(f"{{\n{text}\n}}\n")
    return RECORD


def _of_parts(method: str) -> Settings:
    """Return the defaults of a method's parts."""
    parts = methods.part_classes(method).items()
    return {f"{prefix}.{key}": value for prefix, part in parts for key, value in as_dict(part()).items()}


def _changed(settings: Settings) -> Settings:
    """Return the settings of a run that are not defaults."""
    known = as_dict(RunConfig()) | _of_parts(settings["method"])
    return {key: value for key, value in sorted(settings.items()) if value != known[key]}
