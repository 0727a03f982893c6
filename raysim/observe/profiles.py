"""The profiles of a run with --profile: tables and Chrome traces in `profile/` of the run directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from raysim.engine.callbacks import Callback
from raysim.storage.files import writing

if TYPE_CHECKING:
    from raysim.engine.simulation import Result


class Profiles(Callback):
    """A callback that writes what was profiled, and on Ray (`with_ray`) a timeline of all its calls."""

    def __init__(self, with_ray: bool):
        self.with_ray = with_ray

    def on_start(self, settings: dict[str, Any], out: Path) -> None:
        self.out = out

    def on_result(self, result: Result) -> None:
        folder = self.out / "profile"
        with writing(folder):
            write_profiles(folder, result.profiles, self.with_ray)


def write_profiles(folder: Path, profiles: dict[str, tuple[str, str]], with_ray: bool) -> None:
    """Write name -> (table, Chrome trace) as NAME.txt and NAME.json, and Ray's own trace as ray.json.

    chrome://tracing and Perfetto show the traces.
    """
    folder.mkdir(exist_ok=True)
    for name, (table, trace) in profiles.items():
        (folder / f"{name}.txt").write_text(table)
        (folder / f"{name}.json").write_text(trace)
    if with_ray:
        ray.timeline(str(folder / "ray.json"))
