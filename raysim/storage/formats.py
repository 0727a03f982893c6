"""Format versions of the files of a run directory, and how older files are read.

`config.json`, the manifest of a checkpoint and every line of `metrics.jsonl` have a key `format`; `synthetic.parquet`
has `raysim_format` in its schema's metadata. Files without one are those of raysim 0.1.0, which had the same keys. A
file of a newer format is refused. Raise the number when a reader of the old format would misread the new one.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysim import methods
from raysim.config import RunConfig
from raysim.engine.round_metrics import FORMAT as METRICS_FORMAT
from raysim.engine.round_metrics import RoundMetrics
from raysim.errors import InputError

CONFIG_FORMAT = 1
MANIFEST_FORMAT = 1
SYNTHETIC_FORMAT = 1
SYNTHETIC_KEY = "raysim_format"  # in the schema's metadata


def check_format(path: Path, content: Mapping[str, Any], newest: int) -> None:
    """Refuse content of a file whose format is newer than this raysim reads."""
    found = content.get("format", 0)
    if not isinstance(found, int) or found > newest:
        raise InputError(f"{path} has format {found}, this raysim reads up to format {newest}: use a newer raysim")


def read_config(run: Path) -> dict[str, Any]:
    """The content of a run directory's config.json, its settings completed with today's defaults."""
    path = run / "config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    check_format(path, content, CONFIG_FORMAT)
    return content | {"settings": completed_settings(content["settings"])}


def read_metrics(path: Path, line: str | bytes) -> RoundMetrics:
    """A round from its line of metrics.jsonl."""
    content = json.loads(line)
    check_format(path, content, METRICS_FORMAT)
    return RoundMetrics.from_line(content)


def completed_settings(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Recorded settings, and today's default of every setting that raysim did not have when they were recorded."""
    defaults = _defaults(RunConfig)
    try:
        parts = methods.part_classes(recorded.get("method", defaults["method"]))
    except InputError:  # a method that is not installed here: its settings stay as they were recorded
        parts = {}
    for prefix, part in parts.items():
        defaults |= {f"{prefix}.{name}": value for name, value in _defaults(part).items()}
    return {**recorded, **{name: value for name, value in defaults.items() if name not in recorded}}


def _defaults(kind: type) -> dict[str, Any]:
    return {each.name: each.default for each in dataclasses.fields(kind) if "help" in each.metadata}
