"""The errors a user is meant to read: one line each, and the exit code that goes with them."""


class RaysimError(Exception):
    """Something ended the run; the message is for the user."""

    exit_code = 1


class InputError(RaysimError):
    """The input is wrong: what, where, and what to do about it."""

    exit_code = 2


class PlanError(RaysimError):
    """The cluster cannot hold what was asked."""

    exit_code = 3
