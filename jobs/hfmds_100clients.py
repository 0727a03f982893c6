#!/usr/bin/env python
"""HFMDS clients and a FedPA server, 100 clients with one class each:  ray job submit jobs/hfmds_100clients.py

Runs FedAvg with the same seed and clients afterwards and prints both. Takes every flag of `python -m raysim run`; after
`--` when given to `ray job submit`. The weights come from docs/results.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a job, only jobs/ is on the path

from raysim.__main__ import job

SETTINGS = {
    "method": "hfmds+fedpa", "dataset": "shapes", "clients": 100, "active": 10, "rounds": 30,
    "partition": "classes", "classes_per_client": 1,
    "hfmds.every": 5, "hfmds.steps": 50, "hfmds.per_client": 10, "hfmds.alpha": 0.5,
    "fedpa.lambda_ge": 0.5, "fedpa.lambda_po": 0.01, "fedpa.lambda_po_floor": 0.0, "tsne": 400,
}  # fmt: skip

job(beside="fedavg", **SETTINGS)
