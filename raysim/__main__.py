"""`python -m raysim COMMAND …`."""

from raysim.cli import main
from raysim.engine.signals import leave

if __name__ == "__main__":
    leave(main())
