"""The errors whose message, of one line, is meant for the user, with the exit codes of the program."""

import re

LONGEST = 1000  # characters of a message; what it quotes may have millions
CREDENTIALS = re.compile(r"(:/{1,2})[^\s@'\"]*:[^\s'\"]*@")  # in an address, also one that became a path


def one_line(text: str) -> str:
    """The text on one line that a terminal can show: no control characters, not endless, and no address's credentials.

    >>> one_line("a file\\nwith a\\0 strange name")
    'a file with a\\\\x00 strange name'
    """
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} … {text[-LONGEST // 4 :]}"
    text = CREDENTIALS.sub(r"\1…@", " ".join(text.split()))
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class RaysimError(Exception):
    """An error that ends the run."""

    exit_code = 1


class InputError(RaysimError):
    """A wrong input; the message says, on one line, what is wrong, where, and what to do about it."""

    exit_code = 2

    def __init__(self, message: str):
        super().__init__(one_line(message))


class PlanError(RaysimError):
    """A plan that does not fit the cluster."""

    exit_code = 3
