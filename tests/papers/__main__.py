"""`python -m tests.papers`: write anew what the papers' presets and sweeps resolve to."""

import sys

from tests.papers import write

sys.stdout.write(f"wrote {write()}\n")
