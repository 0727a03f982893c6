#!/usr/bin/env python
"""HFMDS-FL in its paper's setting on CIFAR-10, beside FedAvg:  ray job submit jobs/hfmds_cifar10.py

The preset hfmds-cifar10: 20 clients, 60 rounds, Dirichlet 0.05; --beta 0.01, or --partition classes, for the paper's
other columns. Takes every flag of `raysim run`; with `ray job submit`, after `--`. Needs the images:
--data DIR (or RAYSIM_DATA), or --download. Made for GPUs: on 2 CPU cores it takes many hours.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a job, only jobs/ is on the path

from raysim import job

job(beside="fedavg", preset="hfmds-cifar10")
