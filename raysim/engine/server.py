"""The server actor: holds the models and the parts' server state; averages, updates, broadcasts.

An ordinary class. Under Ray it is made an actor; the in-process runner calls it directly, with the same results.
It averages with NumPy and imports torch only where a part asks for `device` or `model`: 170 MB less for FedAvg.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import ray

from raysim.data.federated import Federation, assigned_gpus, fetch
from raysim.engine.fixed_point import decode_mean, decode_sum
from raysim.methods.base import Uploads, overrides
from raysim.privacy.figures import Figure
from raysim.rng import stream
from raysim.tensors import size_in_bytes, to_device, to_host

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from raysim.models.flat import FlatModel


class Server:
    """What a part's server hooks are given: `state[part]` persists, `weights` are the global models, flat arrays."""

    def __init__(self, federation):
        self.federation: Federation = fetch(federation)
        self.config = self.federation.config
        self.weights: list[np.ndarray] = []
        self.state: dict[str, dict] = {part.name: {} for part in self.config.parts}
        self.shared: dict[str, pa.Table] = {}  # part -> the dataset all clients read
        self.shared_references: dict[str, object] = {}
        self.shared_since: dict[str, int] = {}  # part -> round
        self.newly_shared = 0  # bytes each of the clients have not been told of
        self.metrics: dict[str, float] = {}  # what parts want said of this round
        self.t = 0

    @cached_property
    def device(self) -> torch.device:
        """Where parts compute."""
        from raysim.training.device import prepare_torch

        return prepare_torch(self.config)

    @cached_property
    def model(self) -> FlatModel:
        """The classifier, for its structure: it holds the initial weights."""
        from raysim.training.client import initial_model

        return initial_model(self.federation, self.device)

    def hello(self) -> list[int]:
        """Answers once the actor is up: the GPUs it was given."""
        return assigned_gpus()

    def stream(self, purpose: str) -> np.random.Generator:
        """The server's own draws of this round."""
        return stream(self.config.seed, f"server/{purpose}", self.t)

    def share(self, part_name: str, table: pa.Table, bytes_each: float | None = None) -> None:
        """Give a dataset to all clients from now on: one copy in the object store of every node.

        `bytes_each`: what a client downloads of it, where that is not the whole table.
        """
        reference = ray.put(table) if ray.is_initialized() else table
        self.shared_references[part_name] = reference
        self.shared[part_name] = fetch(reference)  # the store's memory, so that ours is freed
        self.shared_since[part_name] = self.t
        self.newly_shared += table.nbytes if bytes_each is None else bytes_each
        self.metrics["shared_bytes"] = sum(table.nbytes for table in self.shared.values())

    # -- called by the simulation ------------------------------------------------------------------------------------

    def begin(self, weights: np.ndarray) -> list[np.ndarray]:
        """Start from these weights; publishes the models."""
        self.weights = [np.array(weights)]
        for part in self.config.parts:
            part.setup(self)
        return list(self.weights)

    def exchange(self, part_name: str, t: int, i: int) -> str | None:
        self.t = t
        return self._part(part_name).exchange(self, t, i)

    def broadcast(self, t: int) -> tuple[dict[str, dict], int]:
        """What the parts send with the model, and its bytes."""
        self.t = t
        extras = {part.name: to_host(part.broadcast(self)) for part in self.config.parts}
        return extras, size_in_bytes(extras)

    def told(self) -> tuple[dict[str, float], dict[str, object], int]:
        """What parts said of the round so far, references to what they share, and the bytes of it that are new."""
        metrics, newly_shared = self.metrics, self.newly_shared
        self.metrics, self.newly_shared = {}, 0
        return metrics, self.shared_references, newly_shared

    def route(self, part_name: str, t: int, clients: list[int]) -> dict[int, int]:
        self.t = t
        return self._part(part_name).route(self, t, clients) or {}

    def receive(self, part_name: str, t: int, actors: int, *arrived) -> None:
        """An exchange's answers: first the sums of so many actors, then uploads client by client."""
        self.t = t
        self._part(part_name).receive(self, self._uploads(part_name, arrived[:actors], arrived[actors:]))

    def aggregate(self, t: int, actors: int, *arrived) -> list[np.ndarray]:
        """Average the models, let the parts do theirs, publish the result."""
        self.t = t
        sums, uploads = arrived[:actors], arrived[actors:]
        personal = self._personal(t)
        for i, before in enumerate(self.weights):
            total = self._total(f"model/{i}", sums)
            if total is not None:  # None: nobody trained this model
                mean = decode_mean(total)
                self.weights[i] = mean if personal is None else np.where(personal, before, mean)
        for part in self.config.parts:
            part.update(self, self._uploads(part.name, sums, uploads))
        return list(self.weights)

    def sample_features(self, t: int, count: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Kind -> features and labels, of the parts that have a generator."""
        self.t = t
        made = {part.name: part.sample_features(self, count) for part in self.config.parts}
        return {f"generated ({name})": to_host(pair) for name, pair in made.items() if pair is not None}

    def privacy(self, t: int) -> tuple[list[Figure], dict[str, tuple[np.ndarray, np.ndarray]]]:
        """What is certified, and the means that parts gave to all clients, with their classes, to be attacked."""
        self.t = t
        figures = [Figure("model.epsilon", None, note="no certificate: trained without clipping and noise")]
        means = {}
        for part in self.config.parts:
            if overrides(part, "reply") or overrides(part, "end"):  # it shares something
                figures += [replace(figure, name=f"{part.name}.{figure.name}") for figure in part.certificate(self)]
            if (shared := part.shared_means(self)) is not None:
                means[part.name] = to_host(shared)
        return figures, means

    def snapshot(self) -> tuple[dict, dict[str, int]]:
        """What has to be kept to go on after this round, and since when the parts share what they share."""
        kept = {"weights": self.weights, "state": to_host(self.state)}
        return copy.deepcopy(kept), dict(self.shared_since)  # parts write into their state, and this is read later

    def restore(self, kept: dict, shared: dict[str, tuple[int, pa.Table]]) -> list[np.ndarray]:
        """Be as after that round; publishes the models."""
        self.weights = [np.array(weights) for weights in kept["weights"]]
        self.state = to_device(kept["state"], self.device) if self.config.parts else {}
        for part_name, (self.t, table) in shared.items():
            self.share(part_name, table)
        self.metrics, self.newly_shared = {}, 0
        return list(self.weights)

    def export(self) -> dict[str, dict]:
        """The parts' state."""
        return to_host(self.state)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _part(self, name: str):
        return next(part for part in self.config.parts if part.name == name)

    def _personal(self, t: int) -> np.ndarray | None:
        if not any(overrides(part, "personal") for part in self.config.parts):
            return None
        return to_host(self.model.personal_mask(self.config.parts, t))

    def _total(self, key: str, sums) -> np.ndarray | None:
        terms = [s[key] for s in sums if key in s]
        return sum(terms[1:], start=terms[0]) if terms else None

    def _uploads(self, part_name: str, sums, uploads) -> Uploads:
        prefix = f"{part_name}/"
        keys = sorted({key for s in sums for key in s if key.startswith(prefix)})
        decoded = {key.removeprefix(prefix): decode_sum(self._total(key, sums)) for key in keys}
        added = to_device(decoded, self.device) if decoded else {}
        pairs = [(k, each[part_name]) for chunk in uploads if chunk for k, each in chunk if part_name in each]
        return Uploads(added, sorted(pairs, key=lambda pair: pair[0]))
