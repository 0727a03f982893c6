"""Which files raysim writes into a run directory, and which it may remove there: its own, by name, and no others.

A folder is a run directory by what its config.json says, not by its having one: so has many a model's folder.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raysim.errors import InputError
from raysim.storage import lease
from raysim.storage.checkpoints import FILE_NAME as CHECKPOINT_FILE
from raysim.storage.checkpoints import files_of_run
from raysim.storage.formats import DamagedFile, is_event, read_json, read_json_lines

FILES = (
    "config.json", "metrics.jsonl", "events.jsonl", "summary.json", "timeline.jsonl", "model.safetensors",
    "server_state.safetensors", "labels.png", "labels.csv", "synthetic.parquet", "synthetic.png", "pairs.png",
    "features.png", "features.json", "privacy.json", "measures.json", "report.html", "log.txt",
)  # fmt: skip
BEFORE_CONFIG = ("events.jsonl", "log.txt", ".config.json.tmp", ".events.jsonl.tmp")  # what comes before config.json
LOCK = ".lock"  # of `compare` and `sweep`, in the folder of their runs
TENSORBOARD_FILE = re.compile(r"events\.out\.tfevents\.\d{10,}\.[\w.-]+\.\d+\.\d+")
TEMPORARY = re.compile(r"\.(.+?)(\.\d+-\d+)?\.tmp")  # `replacing` makes them, and with numbers the label picture


def is_begun(folder: Path) -> bool:
    """Whether a run may have been ended here before it wrote config.json, and nobody else has written anything."""
    names = {entry.name for entry in folder.iterdir() if not _is_guard(entry.name)}
    return names <= {*BEFORE_CONFIG} and _has_own_events(folder)


def is_empty(folder: Path) -> bool:
    """Whether there is nothing but what keeps other drivers away."""
    return all(_is_guard(entry.name) for entry in folder.iterdir())


def own_files(folder: Path) -> list[Path]:
    """The files of the run in this folder, to be removed; an InputError names the first entry that is not one of them.

    Leases are not among them: whoever removes a run holds one.
    """
    if not (folder / "config.json").exists():
        if is_begun(folder):
            return [folder / name for name in BEFORE_CONFIG if name != "log.txt" and (folder / name).exists()]
        raise InputError(f"--out {folder} is not a run directory, so --overwrite will not touch it; choose another")
    return list(_checked(folder, _own_config(folder)))


def remove(files: list[Path]) -> None:
    """Remove these files, config.json last: until then the rest is known to be ours. Then folders that are empty."""
    for path in sorted(files, key=lambda path: path.name == "config.json"):
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in files if path.parent.name in _FOLDERS}:
        if not folder.is_symlink() and not any(folder.iterdir()):
            folder.rmdir()


def _own_config(folder: Path) -> dict[str, Any]:
    """The content of config.json; an InputError if it is not raysim's."""
    path = folder / "config.json"
    try:
        return read_json(path, {"settings": {"method": str, "dataset": str}, "versions": {"raysim": str}})
    except DamagedFile:
        raise InputError(
            f"--out {folder}: its config.json is not one that raysim wrote, so --overwrite will not touch it; choose "
            "another"
        ) from None


def _checked(folder: Path, config: dict[str, Any]) -> Iterator[Path]:
    parts = {name.rpartition(".")[2] for name in config["settings"]["method"].split("+")}
    for path in sorted(folder.iterdir()):
        if _is_guard(path.name):
            continue
        if path.name in _FOLDERS and path.is_dir():
            yield from _checked_below(folder, path, config, parts)
        elif _without_tmp(path.name) in FILES and _is_file(path):
            yield path
        else:
            raise _foreign(folder, path)


def _checked_below(folder: Path, path: Path, config: dict[str, Any], parts: set[str]) -> Iterator[Path]:
    """The files in one of its folders. Others may use what a link leads to: there names alone do not make them ours."""
    linked = path.is_symlink()
    if linked and path.name != "checkpoints":
        return
    own = files_of_run(path, config) if linked else None
    for inner in sorted(path.iterdir()):
        if not _FOLDERS[path.name](inner.name, parts) or not _is_file(inner):
            raise _foreign(folder, inner)
        if own is not None and inner.name not in own:
            raise _foreign(folder, inner, "no checkpoint of this run names")
        yield inner


def _foreign(folder: Path, path: Path, why: str = "raysim did not write") -> InputError:
    return InputError(
        f"--out {folder}: {why} its {path.relative_to(folder)}, so --overwrite removes nothing; move that elsewhere, "
        "or choose another"
    )


def _is_file(path: Path) -> bool:
    return path.is_symlink() or path.is_file()  # of a link only the link is removed


def _is_guard(name: str) -> bool:
    return name == LOCK or lease.NAMES.fullmatch(name) is not None


def _without_tmp(name: str) -> str:
    found = TEMPORARY.fullmatch(name)
    return found[1] if found else name


def _has_own_events(folder: Path) -> bool:
    path = folder / "events.jsonl"
    try:
        return not path.exists() or all(map(is_event, read_json_lines(path, {})))
    except DamagedFile:
        return False


def _is_profile(name: str, parts: set[str]) -> bool:
    stem, _, suffix = name.rpartition(".")
    return suffix in ("json", "txt") and stem in {"training", "ray", *parts}


_FOLDERS: dict[str, Any] = {
    "checkpoints": lambda name, parts: CHECKPOINT_FILE.fullmatch(_without_tmp(name)),
    "profile": _is_profile,
    "tensorboard": lambda name, parts: TENSORBOARD_FILE.fullmatch(name),
}  # what is a file of theirs
