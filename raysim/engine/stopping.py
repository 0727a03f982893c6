"""When a run ends before its last round: the rules of --stop-accuracy and --patience."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from raysim.engine.round_metrics import is_evaluated
from raysim.settings import Given, flag

if TYPE_CHECKING:
    from raysim.config import RunConfig
    from raysim.engine.round_metrics import RoundMetrics


def reason_to_stop(config: RunConfig, history: Sequence[RoundMetrics]) -> str:
    """Why the run ends after the last of these rounds; empty if it goes on. Depends on nothing else.

    Only rounds that --eval-every asks for count, so that a run that is extended ends where a longer one would have.
    """
    return next(iter(_reasons(config, history).values()), "")


def _reasons(config: RunConfig, history: Sequence[RoundMetrics]) -> dict[str, str]:
    """The settings that end the run after the last of these rounds, each with what it says."""
    found: dict[str, str] = {}
    accuracies = {
        each.round: each.accuracy
        for each in history
        if each.accuracy is not None and is_evaluated(config.eval_every, each.round)
    }
    last = len(history)
    if (accuracy := accuracies.get(last)) is None:
        return found
    if config.stop_accuracy is not None and accuracy >= config.stop_accuracy:
        found["stop_accuracy"] = f"accuracy {accuracy:.4f} reached --stop-accuracy {config.stop_accuracy:g}"
    if config.patience is not None:
        best = max(accuracies, key=lambda t: (accuracies[t], -t))  # the first of equal ones
        if last - best >= config.patience:
            found["patience"] = (
                f"no better accuracy than round {best}'s {accuracies[best]:.4f} for --patience {config.patience} rounds"
            )
    return found


def how_to_extend(config: RunConfig, history: Sequence[RoundMetrics]) -> str:
    """What to give so that a run that has ended after these rounds goes on; empty where nothing makes it."""
    needed = [f"{flag(key)} none" for key in _reasons(config, history)]
    if needed and len(history) < config.rounds:
        return " ".join(needed)
    if any(part.goes_by_rounds for part in config.parts):
        return ""
    return " ".join([f"--rounds above {config.rounds}", *needed])


def length_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that decide how long a run is: what was ended under one set of them may go on under another."""
    callback = None if isinstance(config.callback, Given) else config.callback  # as it is recorded
    return {key: getattr(config, key) for key in config.LENGTH} | {"callback": callback}
