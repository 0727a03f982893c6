"""A run that is a trial of a search: after every evaluated round it asks the search whether to go on."""

from __future__ import annotations

import json
import os
import signal

from raysim.engine.callbacks import Callback
from raysim.engine.round_metrics import RoundMetrics

PIPES = "RAYSIM_SEARCH"  # environment variable: the descriptors to ask by and to be answered by, `5,6`


class SearchTrial(Callback):
    """Asks by one pipe and waits for the answer on another: a line of JSON each."""

    def __init__(self, asking: int, answers: int):
        self.asking, self.answers = os.fdopen(asking, "w"), os.fdopen(answers)

    def on_round(self, metrics: RoundMetrics) -> str | None:
        if metrics.accuracy is None:
            return None
        try:
            self.asking.write(json.dumps({"round": metrics.round, "accuracy": metrics.accuracy}) + "\n")
            self.asking.flush()
            answer = self.answers.readline()
        except OSError:
            answer = ""
        if not answer:  # the search is dead: the run ends as if interrupted, and goes on with it
            os.kill(os.getpid(), signal.SIGTERM)
            return None
        return json.loads(answer)["stop"] or None


def search_trial() -> list[Callback]:
    """The callback, if this process was started by a search; the descriptors are used once."""
    pipes = os.environ.pop(PIPES, "")
    return [SearchTrial(*map(int, pipes.split(",")))] if pipes else []
