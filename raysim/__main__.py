"""`python -m raysim COMMAND …`, and the installed `raysim`."""

import os
import signal
from types import FrameType
from typing import NoReturn


def console() -> NoReturn:
    """Run the command of this process, which an interrupt ends in one line also while its modules are loaded."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore it
        signal.signal(signal.SIGINT, _end)
    from raysim import cli

    cli.console()


def _end(signum: int, frame: FrameType | None) -> None:
    """End at once: nothing has begun, and in the midst of an import an exception may become any other."""
    os.write(2, b"raysim: interrupted; give the same command again\n")
    os._exit(130)


if __name__ == "__main__":
    console()
