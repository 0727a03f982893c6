"""Runner: what the simulation needs from whatever runs its server and clients. Importing this does not import torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from raysim.data.federated import FederatedData
from raysim.engine.failures import FaultCount, ServerLost
from raysim.engine.messages import Broadcast, EachUpload, Hello, PassAnswer, States
from raysim.engine.work_queue import Answers, Group, Pass
from raysim.privacy.figures import Figure

if TYPE_CHECKING:
    from raysim.config import RunConfig

LabelledFeatures = dict[str, tuple[np.ndarray, np.ndarray]]  # kind -> features and labels


class OnEvent(Protocol):
    """Takes an event for events.jsonl."""

    def __call__(self, kind: str, /, **details: Any) -> None: ...


def ignore_event(kind: str, /, **details: Any) -> None:
    """An `OnEvent` that drops the event."""


@dataclass(frozen=True)
class Started:
    """What is known once all actors are up."""

    fingerprints: list[dict[str, object]]  # of each client actor's device
    model_bytes: int  # of one model's weights


class Runner(Protocol):
    """Runs one server and the passes over clients; on Ray (engine/ray_runner) or in this process (in_process.py)."""

    faults: FaultCount  # so far
    on_event: OnEvent

    def reserve(self) -> None:
        """Take the place this run needs, or raise a PlanError."""
        ...

    def start(self, config: RunConfig, data: FederatedData) -> Started:
        """Start the server and the client actors."""
        ...

    def put(self, value: Any) -> Any:
        """Store an object for all actors, and return a reference to it."""
        ...

    def get(self, reference: Any) -> Any:
        """The object behind a reference that the server gave; a ServerLost if it is gone."""
        ...

    def call_server(self, method: Callable[..., Any], *arguments: Any, returns: int = 1) -> Any:
        """Call a method of engine/server.py's Server; returns a reference to its result, or as many as it returns."""
        ...

    def run(self, work: Pass) -> Answers:
        """Carry out a pass, whatever is lost on the way."""
        ...

    def follow_nodes(self) -> None:
        """Adapt to nodes that have left or joined."""
        ...

    def restart_server(self, lost: ServerLost) -> None:
        """Start a new server, with nothing in it yet, in place of the lost one."""
        ...

    def stop(self) -> None:
        """Give everything back."""
        ...


class WorkerCalls(Protocol):
    """The calls of a client actor. Client work is a pure function of broadcast, client data and state."""

    def hello(self) -> Hello:
        """Answer once the actor is up."""
        ...

    def train(self, broadcast: Broadcast, groups: list[Group], states: States) -> PassAnswer:
        """Train the clients of these groups; the trained models go into the actor's sums."""
        ...

    def reply(self, broadcast: Broadcast, groups: list[Group], states: States, part_name: str) -> PassAnswer:
        """Answer a part's exchange for these groups of clients."""
        ...

    def collect(self) -> tuple[int, dict[str, np.ndarray]]:
        """Hand over the sums since the last call, with the number of clients in them."""
        ...

    def add(self, sums: int, *arrived: Any) -> tuple[int, dict[str, np.ndarray], EachUpload]:
        """Put together what several actors handed over, first so many sums, then uploads; how many they were."""
        ...

    def evaluate(self, broadcast: Broadcast, groups: list[Group], states: States | None) -> tuple[int, int | None]:
        """Correct predictions and summed loss over these test batches."""
        ...

    def sample_features(
        self, broadcast: Broadcast, groups: list[Group], states: States, count: int
    ) -> LabelledFeatures:
        """Features of test images and of shared images, to be drawn."""
        ...

    def attack(
        self, broadcast: Broadcast, groups: list[Group], states: None,
        means: dict[str, tuple[np.ndarray, np.ndarray]], last: list[int],
    ) -> list[Figure]:  # fmt: skip
        """Attack the model and what is shared; the one group has the clients that took part, `last` the last cohort."""
        ...

    def compare_images(self, broadcast: Broadcast, groups: list[Group], states: None) -> list[Figure]:
        """Compare shared images, and training images of the one group's clients, with held-out ones."""
        ...
