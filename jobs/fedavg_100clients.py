#!/usr/bin/env python
"""FedAvg with 100 clients, 10 of them active a round, two classes each:  ray job submit jobs/fedavg_100clients.py

Takes every flag of `raysim run`; with `ray job submit`, after `--`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a job, only jobs/ is on the path

from raysim import job

job(method="fedavg", dataset="shapes", clients=100, active=10, rounds=30, partition="classes", classes_per_client=2)
