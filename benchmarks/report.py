"""How figures are written: tables, the machine they were measured on, and a file with one section per benchmark."""

import importlib.metadata
import os
import platform
import re
import statistics
from datetime import date
from pathlib import Path

import psutil

from raysim.tables import Table

TITLE = "# Benchmarks\n\nWritten by the programs in `benchmarks/`, a section each; every one says how it is run.\n"


def table(head: list[str], rows: list[list[object]]) -> str:
    """A table in Markdown."""
    return Table(head, [list(map(str, cells)) for cells in rows]).markdown()


def spread(values: list[float], digits: int = 3) -> str:
    """The median, with the lowest and the highest value."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def megabytes(size: int) -> str:
    return f"{size / 2**20:,.0f}"


def machine() -> str:
    """What this runs on: the kind of machine, never its name."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "ray", "numpy")]
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, {platform.system()}; "
        f"Python {platform.python_version()}, {', '.join(versions)}; {date.today().isoformat()}."
    )


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def publish(name: str, text: str, path: Path | None) -> None:
    """Print a section, and put it into the file, in place of the earlier one of this name."""
    print(f"\n{text}\n", flush=True)
    if path is None:
        return
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    section = f"{begin}\n{text.strip()}\n{end}"
    before = path.read_text() if path.exists() else TITLE
    held = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    after = held.sub(lambda _: section, before) if held.search(before) else f"{before.rstrip()}\n\n{section}\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(after)
