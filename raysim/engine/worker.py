"""The worker in a client actor: hosts a model, trains clients with it, and evaluates it.

An ordinary class. Under Ray an actor hosts it; the in-process runner calls it directly, with the same results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.data.federated import FederatedData
from raysim.engine.client_work import ClientWork
from raysim.engine.evaluator import Evaluator
from raysim.engine.fixed_point import add_up
from raysim.engine.hosted_model import HostedModel
from raysim.engine.messages import Broadcast, EachUpload, Hello, PassAnswer, States
from raysim.engine.own_code import own_code
from raysim.engine.runner import LabelledFeatures, WorkerCalls
from raysim.engine.work_queue import Group
from raysim.privacy.figures import Figure
from raysim.training.device import fingerprint, limit_memory

if TYPE_CHECKING:
    from raysim.config import RunConfig


class Worker(WorkerCalls):
    """Does what WorkerCalls declares, for whichever clients and test batches it is given."""

    def __init__(self, config: RunConfig, data: FederatedData, use_gpu: bool = True):
        self.hosted = HostedModel(config, data, use_gpu)
        self.clients = ClientWork(self.hosted)
        self.evaluator = Evaluator(self.hosted)

    def limit_memory(self, share: float) -> None:
        """Take no more of the device's memory than this share of it."""
        limit_memory(self.hosted.device, share)

    def hello(self) -> Hello:
        return Hello(fingerprint(self.hosted.device, self.hosted.config.precision), self.hosted.model.weights.nbytes)

    def train(self, broadcast: Broadcast, groups: list[Group], states: States) -> PassAnswer:
        return self.clients.train(broadcast, groups, states)

    def reply(self, broadcast: Broadcast, groups: list[Group], states: States, part_name: str) -> PassAnswer:
        return self.clients.reply(broadcast, groups, states, part_name)

    def collect(self) -> tuple[int, dict[str, np.ndarray]]:
        return self.clients.collect()

    def add(self, sums: int, *arrived: Any) -> tuple[int, dict[str, np.ndarray], EachUpload]:
        return sums, add_up(arrived[:sums]), [pair for several in arrived[sums:] for pair in several] or None

    def evaluate(self, broadcast: Broadcast, groups: list[Group], states: States | None) -> tuple[int, int | None]:
        with own_code(broadcast.t):
            return self.evaluator.evaluate(broadcast, groups, states)

    def sample_features(
        self, broadcast: Broadcast, groups: list[Group], states: States, count: int
    ) -> LabelledFeatures:
        with own_code(broadcast.t):
            return self.evaluator.sample_features(broadcast, groups, states, count)

    def attack(
        self, broadcast: Broadcast, groups: list[Group], states: None,
        means: dict[str, tuple[np.ndarray, np.ndarray]], last: list[int],
    ) -> list[Figure]:  # fmt: skip
        (trained,) = groups
        with own_code(broadcast.t):
            return self.evaluator.attack(broadcast, means, trained, last)

    def compare_images(self, broadcast: Broadcast, groups: list[Group], states: None) -> list[Figure]:
        (trained,) = groups
        with own_code(broadcast.t):
            return self.evaluator.compare_images(broadcast, trained)
