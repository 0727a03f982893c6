"""The errors whose message, of one line, is meant for the user, with the exit codes of the program."""


class RaysimError(Exception):
    """An error that ends the run."""

    exit_code = 1


class InputError(RaysimError):
    """A wrong input; the message says what is wrong, where, and what to do about it."""

    exit_code = 2


class PlanError(RaysimError):
    """A plan that does not fit the cluster."""

    exit_code = 3
