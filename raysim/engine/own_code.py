"""What goes wrong in users' own code, in words: which hook of which part, in which round."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from raysim.data.object_store import LostObject
from raysim.engine.ending import ending
from raysim.engine.failures import RunFailure
from raysim.errors import InputError
from raysim.methods.common.contract import HookError

EXITS = (SystemExit, KeyboardInterrupt)  # of which the process would end, with the exit code of somebody else's choice


def is_own(error: BaseException) -> bool:
    """Whether it is the fault of the code that raised it: not of the device, of something lost, or of an interrupt."""
    if isinstance(error, KeyboardInterrupt):
        return ending.hears and not ending.interrupted
    if isinstance(error, SystemExit):
        return True
    from raysim.training.device import trouble_of  # the driver does without torch

    return isinstance(error, Exception) and not isinstance(error, LostObject) and trouble_of(error) is None


def hook_of(error: BaseException) -> tuple[str, str] | None:
    """The part and the hook that an error came from, as `Part.ask` has noted."""
    return getattr(error, "hook", None)


def of_hook(error: HookError, part: str, hook: str) -> HookError:
    """Note whose an error is that was found later."""
    error.hook = part, hook  # type: ignore[attr-defined]
    return error


def described(error: BaseException) -> str:
    """What happened, in words."""
    if isinstance(error, HookError | InputError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def trace_of(error: BaseException) -> str:
    """The traceback to show; empty where the text says it all."""
    return "" if isinstance(error, HookError | InputError) else "".join(traceback.format_exception(error))


@contextmanager
def own_code(t: int, part: str = "", hook: str = "", hint: str = "") -> Iterator[None]:
    """Turn what a hook raises into a RunFailure of one line that names hook, part and round, whoever hosts it.

    An error of no hook is not touched, unless it would end the process.
    """
    try:
        yield
    except RunFailure:
        raise
    except BaseException as error:
        place = hook_of(error) or ((part, hook) if hook else None)
        if not is_own(error) or not (place or isinstance(error, EXITS)):
            raise
        who = f"`{place[1]}` of {place[0]}" if place else "own code"
        when = f"in round {t}" if t else "before round 1"
        hint = hint if "read-only" in str(error) else ""
        raise RunFailure(f"{who} failed {when}: {described(error)}{hint}", trace_of(error)) from None
