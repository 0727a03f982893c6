"""When a run ends before its last round: the rules of --stop-accuracy and --patience."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from raysim.settings import Given

if TYPE_CHECKING:
    from raysim.config import RunConfig
    from raysim.engine.round_metrics import RoundMetrics


def reason_to_stop(config: RunConfig, history: Sequence[RoundMetrics]) -> str:
    """Why the run ends after the last of these rounds; empty if it goes on. Depends on nothing else."""
    if not history or (accuracy := history[-1].accuracy) is None:
        return ""
    if config.stop_accuracy is not None and accuracy >= config.stop_accuracy:
        return f"accuracy {accuracy:.4f} reached --stop-accuracy {config.stop_accuracy:g}"
    if config.patience is not None:
        accuracies = {metrics.round: metrics.accuracy for metrics in history if metrics.accuracy is not None}
        best = max(accuracies, key=lambda t: (accuracies[t], -t))  # the first of equal ones
        if history[-1].round - best >= config.patience:
            return (
                f"no better accuracy than round {best}'s {accuracies[best]:.4f} for --patience {config.patience} rounds"
            )
    return ""


def length_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that decide how long a run is: what was ended under one set of them may go on under another."""
    callback = None if isinstance(config.callback, Given) else config.callback  # as it is recorded
    return {key: getattr(config, key) for key in config.LENGTH} | {"callback": callback}
