"""A pytest plugin of `make mutants`: without tests that start Ray, and the quickest first."""

import json
from pathlib import Path


def pytest_collection_modifyitems(config, items):
    config.hook.pytest_deselected(items=[item for item in items if "local_ray" in item.fixturenames])
    stats = Path("mutmut-stats.json")  # once the tests have been timed
    seconds = json.loads(stats.read_text())["duration_by_test"] if stats.exists() else {}
    kept = (item for item in items if "local_ray" not in item.fixturenames)
    items[:] = sorted(kept, key=lambda item: seconds.get(item.nodeid, 0))
