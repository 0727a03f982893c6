"""The errors a user is meant to read: one line each, and the exit code that goes with them."""

LONGEST = 1000  # characters of a message; what it quotes may have millions


def one_line(text: str) -> str:
    """The text on one line that a terminal can show: no control characters, and not endless.

    >>> one_line("a file\\nwith a\\0 strange name")
    'a file with a\\\\x00 strange name'
    """
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} … {text[-LONGEST // 4 :]}"
    text = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class RaysimError(Exception):
    """Something ended the run; the message is for the user."""

    exit_code = 1


class InputError(RaysimError):
    """The input is wrong: what, where, and what to do about it. On one line, whatever names or messages it quotes."""

    exit_code = 2

    def __init__(self, message: str):
        super().__init__(one_line(message))


class PlanError(RaysimError):
    """The cluster cannot hold what was asked."""

    exit_code = 3
