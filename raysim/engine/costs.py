"""What clients' work is expected to cost, learned from how long it took: it decides who works when, never a result."""

from __future__ import annotations

from itertools import chain

import numpy as np

from raysim.engine.work_queue import Answers, Group, Pace

CLASSES_PER_OCTAVE = 4  # clients whose numbers of samples differ by less than a fifth are of one class
CLASSES = 32 * CLASSES_PER_OCTAVE
FORGET = 0.5  # of what is known, with every pass: in later rounds the same clients may have other work
PRIOR = 0.1  # clients of mean cost that every actor is taken to have done at mean speed
FITS = 10  # steps; speeds change by less than a hundredth in the last


class LearnedCosts:
    """The seconds that clients of each class of size took on each actor, by kind of pass.

    Samples alone mislead: a fixed number of local steps takes the same time for everyone, a tiny client costs its model
    as much to load as a large one, and the images that a method shares cost all clients alike. A client of a class is
    taken to need the class's seconds ÷ the actor's speed.
    """

    def __init__(self, sizes: np.ndarray):
        self.sizes = sizes  # samples of each client
        self.seen: dict[str, np.ndarray] = {}  # kind -> [clients, their samples, their seconds] by class and actor

    def learn(self, kind: str, answers: Answers) -> None:
        """Take in how long the clients of a pass took; those of 0 seconds were left out."""
        reports = answers.reports
        seconds, samples = np.asarray(reports.seconds), self.sizes[reports.clients]
        actor = np.repeat(answers.actors, [len(one.clients) for one in answers.first])
        done = seconds > 0
        seconds, samples, actor = seconds[done], samples[done], actor[done]
        before = self.seen.get(kind, np.zeros((3, CLASSES, 0)))
        actors = max(before.shape[2], actor.max(initial=-1) + 1)
        place = _size_class(samples) * actors + actor
        columns = np.ones(len(place)), samples, seconds
        new = np.array([np.bincount(place, column, CLASSES * actors) for column in columns])
        before = np.pad(before, ((0, 0), (0, 0), (0, actors - before.shape[2])))
        self.seen[kind] = FORGET * before + new.reshape(3, CLASSES, actors)

    def of_groups(self, kind: str, groups: list[Group]) -> tuple[list[float], Pace]:
        """The cost of each group, in samples' worth of work of the mean client of the pass, and the actors' pace."""
        samples = self.sizes[list(chain.from_iterable(groups))].astype(float)
        first = np.cumsum([0, *map(len, groups[:-1])])
        seen = self.seen.get(kind)
        if seen is None or not seen[0].any():
            return np.add.reduceat(samples, first).tolist(), Pace()
        seconds, speeds = self._expected(seen, samples)
        rate = seconds.sum() / samples.sum()
        return np.add.reduceat(seconds / rate, first).tolist(), Pace(dict(enumerate(speeds.tolist())), float(rate))

    def _expected(self, seen: np.ndarray, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What clients of these numbers of samples should take an actor of mean speed, and each actor's speed."""
        clients, with_samples, seconds = seen[:, seen[0].sum(1) > 0]
        count = clients.sum(1)
        speeds = np.ones(clients.shape[1])
        for _ in range(FITS):
            of_class = seconds @ speeds / count
            prior = PRIOR * (of_class @ count) / count.sum()
            speeds = (of_class @ clients + prior) / (seconds.sum(0) + prior)
            speeds /= speeds[clients.any(0)].mean()
        of_class = seconds @ speeds / count
        mean_samples = with_samples.sum(1) / count
        beyond = np.maximum(samples / mean_samples[-1], 1.0)  # larger than any seen: in proportion
        return np.interp(samples, mean_samples, of_class) * beyond, speeds


def _size_class(samples: np.ndarray) -> np.ndarray:
    return (np.log2(np.maximum(samples, 1)) * CLASSES_PER_OCTAVE).astype(int)
