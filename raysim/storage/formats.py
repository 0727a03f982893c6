"""Format versions of the files of a run directory, and what is said of damaged files.

`config.json`, the manifest of a checkpoint and every line of `metrics.jsonl` have a key `format`; `synthetic.parquet`
has `raysim_format` in its schema's metadata. A file of another format is refused. Raise the number when what is
written changes so that a reader of the old format would misread it.

Everything is read through `read_json` and `read_json_lines`, which compare it with a shape: what readers rely on.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysim.config import RunConfig
from raysim.engine.round_metrics import FORMAT as METRICS_FORMAT
from raysim.engine.round_metrics import RoundMetrics
from raysim.errors import InputError
from raysim.settings import convert, flag, setting_fields

CONFIG_FORMAT = 1
MANIFEST_FORMAT = 2  # states as `raysim/state.py` packs them
SYNTHETIC_FORMAT = 1
SYNTHETIC_KEY = "raysim_format"  # in the schema's metadata

# A shape is a type; a dict of shapes by key, where `key?` may be missing and the key `str` stands for all others; a
# list with the shape of all its items, or if there are several, of each; or a tuple of alternatives, among them None.
# `float` is any number.
Shape = Any
FINITE = "a finite number"
WORDS = {
    int: "a whole number", float: "a number", str: "a text", dict: "an object", list: "a list", None: "null",
    FINITE: FINITE,
}  # fmt: skip

NUMBERS = {str: float}
METRICS = {
    "round": int, "accuracy?": (FINITE, None), "loss?": (float, None), "clients?": int, "bytes_up?": int,
    "bytes_down?": int, "gflops?": NUMBERS, "train_loss?": (float, None), "terms?": NUMBERS, "phases?": {str: FINITE},
    "seconds?": FINITE, "failures?": int, "retries?": int, "skipped?": int, "gpu_bytes?": int,
    "psnr?": (float, None),
    "shared_bytes?": (FINITE, None),
}  # fmt: skip
EVENT = {"time": FINITE, "event": str, "text?": (str, None), "reason?": (str, None)}
TIMELINE = {"round": int, "seconds": FINITE, "spans": {str: [[int, FINITE, FINITE]]}}
SUMMARY = {
    "method": str, "final_accuracy": FINITE, "best_accuracy": FINITE, "late_accuracy?": FINITE,
    "best_five_accuracy?": FINITE, "rounds": int,
    "model_sha256": str, "psnr?": (float, None), "gflops_per_client_round?": NUMBERS, "bytes_up?": int,
    "bytes_down?": int, "privacy?": {str: (float, None)}, "measures?": {str: (float, None)},
    "tsne?": {str: {"intra": float, "inter": float}}, "generator_map?": {str: {"intra": float, "inter": float}},
    "setup_seconds?": FINITE, "seconds": FINITE, "stopped?": (str, None),
}  # fmt: skip
CONFIG = {
    "run": str, "settings": dict, "classes": list, "shape": [int], "mean": [FINITE], "std": [FINITE], "data": str,
    "sources": {str: str},
}  # fmt: skip
FEATURES = {str: {"x": [FINITE], "y": [FINITE], "label": [int]}}
FIGURE = {"name": str, "value": (float, None), "interval?": ([float, float], None), "note?": (str, None)}
PRIVACY = ([FIGURE], dict)


class DamagedFile(InputError):
    """A file of a run directory does not hold what raysim writes there: which, and why."""

    def __init__(self, path: Path, reason: str):
        self.reason = reason
        super().__init__(f"{path} is damaged or not raysim's: {reason}; restore it from a copy, or start the run again")


def read_json(path: Path, shape: Shape) -> Any:
    """The content of a JSON file, if it has this shape."""
    return _parsed(path, _text(path), shape, "")


def read_json_lines(path: Path, shape: Shape) -> list[Any]:
    """The lines of a file, each with this shape, without a last one that a kill has cut; empty if there is no file."""
    if not path.exists():
        return []
    lines = _text(path).split("\n")[:-1]
    return [_parsed(path, line, shape, f"line {i}: ") for i, line in enumerate(lines, 1)]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DamagedFile(path, f"it cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise DamagedFile(path, "it is not text") from None


def _parsed(path: Path, text: str | bytes, shape: Shape, where: str) -> Any:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "it is empty" if not text else f"not JSON ({' '.join(str(error).split())})"
        raise DamagedFile(path, where + reason) from None
    if wrong := misfit(content, shape):
        raise DamagedFile(path, where + wrong)
    return content


def misfit(content: Any, shape: Shape, at: str = "it") -> str:
    """What is wrong with content that should have this shape; empty if nothing is.

    >>> misfit({"round": "2"}, {"round": int, "loss?": float})
    'round is not a whole number'
    """
    if isinstance(shape, tuple):
        wrong = [misfit(content, each, at) for each in shape]
        return wrong[0] if all(wrong) else ""
    if isinstance(shape, list):
        if not isinstance(content, list) or len(shape) not in (1, len(content)):
            return f"{at} is not a list" + (f" of {len(shape)}" if len(shape) > 1 else "")
        shapes = shape * len(content) if len(shape) == 1 else shape
        found = (misfit(item, each, f"an item of {at}") for item, each in zip(content, shapes, strict=True))
        return next(filter(None, found), "")
    if isinstance(shape, dict):
        return _misfit_of_object(content, shape, at)
    if shape is None:
        fits = content is None
    elif shape is float or shape == FINITE:
        fits = isinstance(content, int | float) and not isinstance(content, bool)
        fits = fits and (shape is float or _is_finite(content))
    else:
        fits = isinstance(content, shape) and not isinstance(content, bool)
    return "" if fits else f"{at} is not {WORDS[shape]}"


def _misfit_of_object(content: Any, shape: Mapping[Any, Shape], at: str) -> str:
    if not isinstance(content, dict):
        return f"{at} is not an object"
    named = {key.removesuffix("?"): key for key in shape if isinstance(key, str)}
    for key, as_written in named.items():
        if key not in content and key == as_written:
            return f"{at} has no '{key}'"
    for key, value in content.items():
        inner = shape.get(named.get(key, str))
        if inner is not None and (wrong := misfit(value, inner, key if at == "it" else f"{at}.{key}")):
            return wrong
    return ""


def _is_finite(number: float) -> bool:
    return abs(number) < 2**63 and math.isfinite(number)


def check_format(path: Path, content: Mapping[str, Any], known: int) -> None:
    """Refuse content of a file whose format is not the one that this raysim writes."""
    found = content.get("format")
    if found != known:
        what = "no format" if found is None else f"format {found!r}"
        raise InputError(f"{path} has {what}, this raysim reads format {known}: use the raysim that wrote it")


def read_config(run: Path) -> dict[str, Any]:
    """The content of a run directory's config.json, with its settings checked."""
    path = run / "config.json"
    content = read_json(path, dict)
    check_format(path, content, CONFIG_FORMAT)
    if wrong := misfit(content, CONFIG):
        raise DamagedFile(path, wrong)
    return content | {"settings": _checked_settings(content["settings"], path)}


def read_metrics(path: Path, line: str | bytes, number: int) -> RoundMetrics:
    """A round from its line of metrics.jsonl, which has this number."""
    where = f"line {number}: "
    content = _parsed(path, line, dict, where)
    check_format(path, content, METRICS_FORMAT)
    if wrong := misfit(content, METRICS):
        raise DamagedFile(path, where + wrong)
    return RoundMetrics.from_line(content)


def read_history(path: Path) -> list[RoundMetrics]:
    """The rounds in metrics.jsonl, without a last line that a kill has cut; none if there is no such file."""
    lines = _text(path).split("\n")[:-1] if path.exists() else []
    return [read_metrics(path, line, i) for i, line in enumerate(lines, 1)]


def read_summary(run: Path) -> dict[str, Any]:
    """The content of a run directory's summary.json; empty if the run is not finished."""
    path = run / "summary.json"
    return read_json(path, SUMMARY) if path.exists() else {}


def is_event(line: object) -> bool:
    """Whether this is the content of a line of events.jsonl."""
    return not misfit(line, EVENT)


def _checked_settings(recorded: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return recorded settings for reading; an InputError names one that is missing, or that no run can have.

    Those of a method that is not installed here are left as they are. What resumes a run calls `from_record`, which
    refuses them.
    """
    settings = dict(recorded)
    for key, field in setting_fields(RunConfig).items():
        if key not in recorded:
            raise InputError(f"{path}: no {flag(key)}; another version of raysim wrote it: use that one")
        text = isinstance(recorded[key], str) and isinstance(field.default, str)
        if key == "partition" or not text:  # the method may not be installed here
            settings[key] = convert(field, recorded[key], str(path), key)
    return settings
