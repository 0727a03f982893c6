"""How this process ends: whether an interrupt was seen, and whose line is its last."""

import threading
from collections.abc import Callable


class Ending:
    """Several may want the last word: the command, a thread that misses Ray, a signal. Who takes it first has it."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[str], None]] = []  # called with one word for what happens
        self.hears = False  # whether every interrupt is noted in `interrupted`, so that any other is not one
        self.begin(in_command=False)

    def begin(self, in_command: bool = True) -> None:
        """Nothing has been said yet. In a command the last word comes after all that it calls has returned."""
        self.in_command, self.interrupted = in_command, False
        self.run_directory = ""  # of the run that this process is at, for who says how to go on
        self.listeners.clear()
        self._taken = threading.Lock()

    def said(self) -> None:
        """The last word is said; what follows in this process, if anything, is not of this command."""
        self.tell("said")
        self.in_command = False
        self.listeners.clear()

    def take(self, wait: bool = False) -> bool:
        """Whether the last word is ours. Who has it ends the process: to wait is to be silent."""
        return self._taken.acquire(blocking=wait)

    def interrupt(self) -> None:
        """Take note of an interrupt: whatever fails from now on is its consequence."""
        self.interrupted = True
        self.tell("interrupted")

    def tell(self, word: str) -> None:
        """Pass a word on to whoever listens."""
        for listener in self.listeners:
            listener(word)


ending = Ending()
