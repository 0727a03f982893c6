"""What raysim takes from Ray Tune: the spaces that settings are drawn from, and ASHA, which ends worse trials early.

The trials themselves are runs of raysim's own scheduler (docs/compare.md says why), so Tune's controller is not used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from raysim.errors import InputError

# Kind of a space -> how it is written, and the number of values it takes; None: any.
KINDS: dict[str, tuple[str, int | None]] = {
    "uniform": ("uniform:0,1", 2),
    "loguniform": ("loguniform:1e-4,1e-1", 2),
    "int": ("int:1,10", 2),
    "logint": ("logint:1,1000", 2),
    "choice": ("choice:sgd,adam", None),
}
DIGITS = 4  # that a drawn number keeps, so that what is printed is what is run


def _module() -> Any:
    try:
        return importlib.import_module("ray.tune")
    except ImportError:
        raise InputError("search needs Ray Tune: pip install 'raysim[search]' (pandas is what is missing)") from None


def space(text: Any, key: str) -> Any:
    """The space that a text such as `loguniform:1e-4,1e-1` describes; whole numbers include both ends.

    A space of Tune's own, given in Python, is that already.
    """
    tune = _module()
    if isinstance(text, tune.search.sample.Domain) and not text.is_function():
        return text
    text = str(text)
    kind, _, values = text.partition(":")
    items = [item for item in values.split(",") if item]
    written = ", ".join(example for example, _ in KINDS.values())
    wrong = InputError(f"--over: '{key}={text}' is no space to draw from; write {key}=KIND:VALUES, as in {written}")
    if kind not in KINDS or not items or KINDS[kind][1] not in (None, len(items)):
        raise wrong
    if kind == "choice":
        return tune.choice(items)
    whole = kind in ("int", "logint")
    try:
        low, high = (int(item) if whole else float(item) for item in items)
    except ValueError:
        raise wrong from None
    if not -np.inf < low < high < np.inf or (kind.startswith("log") and low <= 0):
        raise InputError(f"--over: {key}={text}: the first value must be below the second, and above 0 for log…")
    makers: dict[str, Callable[..., Any]] = {
        "uniform": tune.uniform, "loguniform": tune.loguniform, "int": tune.randint, "logint": tune.lograndint,
    }  # fmt: skip
    return makers[kind](low, high + 1 if whole else high)


def draw(domain: Any, stream: np.random.Generator) -> object:
    """One value of a space, as a setting is written."""
    value = domain.sample(random_state=stream)
    value = value.item() if isinstance(value, np.generic) else value
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


class Asha:
    """Tune's ASHA over rounds: at every rung a trial goes on only if it is among the best that came there."""

    def __init__(self, rounds: int, grace: int, reduction: float):
        _module()
        from ray.tune.schedulers import ASHAScheduler

        self.scheduler: Any = ASHAScheduler(
            time_attr="round", metric="accuracy", mode="max", max_t=rounds, grace_period=grace,
            reduction_factor=reduction, stop_last_trials=False,
        )  # fmt: skip
        self.trials: dict[str, Any] = {}

    def ends(self, trial: str, t: int, accuracy: float) -> bool:
        """Whether the trial ends here, now that it has this accuracy after round t."""
        if trial not in self.trials:
            self.trials[trial] = SimpleNamespace(trial_id=trial)
            self.scheduler.on_trial_add(None, self.trials[trial])
        answer = self.scheduler.on_trial_result(None, self.trials[trial], {"round": t, "accuracy": accuracy})
        return answer == self.scheduler.STOP
