#!/usr/bin/env python
"""FedPA on MNIST as its authors' code computes it, beside FedAvg:  ray job submit jobs/fedpa_mnist.py

The preset fedpa-mnist-reference: 20 clients, 200 rounds, Dirichlet 0.1, batch-norm's running statistics personal (so
`fedbn` is FedAvg here). Takes every flag of `raysim run`; with `ray job submit`, after `--`. Needs the images:
--data DIR (or RAYSIM_DATA), or --download.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a job, only jobs/ is on the path

from raysim import job

job(beside="fedbn", preset="fedpa-mnist-reference")
