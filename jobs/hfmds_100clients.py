#!/usr/bin/env python
"""HFMDS clients and a FedPA server, 100 clients with one class each:  ray job submit jobs/hfmds_100clients.py

The preset hfmds-100clients; runs FedAvg with the same seed and clients afterwards and prints both. Takes every flag of
`raysim run`; with `ray job submit`, after `--`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a job, only jobs/ is on the path

from raysim import job

job(beside="fedavg", preset="hfmds-100clients")
