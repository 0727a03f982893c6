"""Format versions of the files of a run directory, and how older files are read.

`config.json`, the manifest of a checkpoint and every line of `metrics.jsonl` have a key `format`; `synthetic.parquet`
has `raysim_format` in its schema's metadata. Files without one are those of raysim 0.1.0, which had the same keys. A
file of a newer format is refused. Raise the number when a reader of the old format would misread the new one.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysim.config import from_record
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
    """The content of a run directory's config.json, with its settings completed."""
    path = run / "config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    check_format(path, content, CONFIG_FORMAT)
    return content | {"settings": completed_settings(content["settings"])}


def read_metrics(path: Path, line: str | bytes) -> RoundMetrics:
    """A round from its line of metrics.jsonl."""
    content = json.loads(line)
    check_format(path, content, METRICS_FORMAT)
    return RoundMetrics.from_line(content)


def completed_settings(recorded: dict[str, Any]) -> dict[str, Any]:
    """Recorded settings for reading: completed with today's defaults, or as they are if raysim does not know them all.

    It does not where a method is not installed here, or a newer raysim had more settings. What resumes a run calls
    `from_record` itself, which refuses such settings.
    """
    try:
        return from_record(recorded, "config.json")
    except InputError:
        return recorded
