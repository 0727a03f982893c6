"""Every method on a device that is not there: equal results, no transfer and no wait in a step, and few launches.

    python -m tests.gpu --write        lowers the table of counts after a change that launches less

Importing this imports no torch: the tests read what a process of its own has found.
"""

import json
from pathlib import Path
from typing import Any

COUNTS = Path(__file__).parent / "counts.json"

Counts = dict[str, dict[str, dict[str, int]]]  # run -> kind of step -> launches, transfers, waits


def known() -> Counts:
    """The table: what no step may exceed."""
    return json.loads(COUNTS.read_text()) if COUNTS.exists() else {}


def counted(runs: dict[str, Any]) -> Counts:
    """The counts among what `python -m tests.gpu` found."""
    return {name: found["steps"] for name, found in runs.items() if found["steps"]}


def lowered(found: Counts) -> Counts:
    """The table with every count that has fallen, and runs that are new; those that are gone are dropped."""
    before = known()
    table: Counts = {}
    for run, kinds in found.items():
        table[run] = {}
        for kind, counts in kinds.items():
            old = before.get(run, {}).get(kind, counts)
            table[run][kind] = {key: min(old[key], counts[key]) for key in counts}
    return table
