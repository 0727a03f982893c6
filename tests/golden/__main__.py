"""`python -m tests.golden`: write this machine's golden hashes."""

import sys

from tests.golden import write

sys.stdout.write(f"wrote {write()}\n")
