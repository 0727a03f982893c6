"""The server: holds the models and the parts' server state; averages, updates, broadcasts.

An ordinary class. Under Ray an actor hosts it; the in-process runner calls it directly, with the same results.
Importing this does not import torch, so that the driver can name its methods.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.data.federated import FederatedData
from raysim.data.object_store import fetch, put
from raysim.engine.failures import RunFailure
from raysim.engine.fixed_point import MEAN_LIMIT, add_up, decode_mean, decode_sum
from raysim.engine.messages import EachUpload
from raysim.measures import feature_kl
from raysim.methods.base import Part, Uploads
from raysim.privacy.figures import Figure
from raysim.rng import stream
from raysim.state import check_state, state_to_device, state_to_host
from raysim.tensors import size_in_bytes, to_device, to_host

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from raysim.config import RunConfig
    from raysim.data.normalisation import DeviceNormalisation
    from raysim.engine.runner import LabelledFeatures
    from raysim.models.flat import FlatModel

Sums = dict[str, np.ndarray]  # what client actors added up, by name


class Server:
    """What a part's server hooks are given: `state[part]` persists, `weights` are the global models, flat arrays."""

    def __init__(self, config: RunConfig, data: FederatedData, use_gpu: bool = True):
        self.config, self.data, self.use_gpu = config, data, use_gpu
        self.weights: list[np.ndarray] = []
        self.state: dict[str, dict[str, Any]] = {part.name: {} for part in config.parts}
        self.shared: dict[str, pa.Table] = {}  # part -> the dataset all clients read
        self.shared_references: dict[str, Any] = {}
        self.shared_since: dict[str, int] = {}  # part -> round
        self.newly_shared = 0.0  # bytes that each client has yet to download
        self.metrics: dict[str, float] = {}  # what parts report of this round
        self.notices: list[str] = []  # what parts want people to know
        self.t = 0
        self.averaged_model = 0  # index of the model that `Part.aggregate` is called for
        self.averaged_clients = 0  # that trained it
        self.arrived: tuple[Sums, Sequence[EachUpload]] = {}, ()  # what `update` has yet to be given

    # -- for the parts -----------------------------------------------------------------------------------------------

    @cached_property
    def device(self) -> torch.device:
        """Where parts compute."""
        from raysim.training.device import prepare_torch

        return prepare_torch(self.config, self.use_gpu)

    @cached_property
    def model(self) -> FlatModel:
        """A classifier to compute with; it starts with the initial weights."""
        from raysim.training.client import initial_model

        return initial_model(self.config, self.data, self.device)

    @cached_property
    def scale(self) -> DeviceNormalisation:
        """How images are normalised, for parts that make images here."""
        return self.data.normalisation.on(self.device)

    def stream(self, purpose: str) -> np.random.Generator:
        """The server's own random draws of this round."""
        return stream(self.config.seed, f"server/{purpose}", self.t)

    def share(self, part_name: str, table: pa.Table, bytes_each: float | None = None) -> None:
        """Give a dataset to all clients from now on: one copy in the object store of every node.

        `bytes_each`: what a client downloads of it, where that is not the whole table.
        """
        reference = put(table)
        self.shared_references[part_name] = reference
        self.shared[part_name] = fetch(reference)  # the store's memory, so that ours is freed
        self.shared_since[part_name] = self.t
        self.newly_shared += table.nbytes if bytes_each is None else bytes_each
        self.metrics["shared_bytes"] = sum(table.nbytes for table in self.shared.values())

    def notify(self, text: str) -> None:
        """Tell the user something in one line: it is printed, and recorded among the events."""
        self.notices.append(text)

    # -- called by the simulation ------------------------------------------------------------------------------------

    def hello(self) -> None:
        """Answer once the server is up; the model is built meanwhile, while the client actors build theirs."""
        _ = self.model

    def begin(self, start: np.ndarray | None = None) -> list[np.ndarray]:
        """Start from these weights, or from the model's initial ones; returns the models."""
        self.weights = [to_host(self.model.weights).copy() if start is None else np.array(start)]
        for part in self.config.parts:
            part.setup(self)
        self._check_state()
        return list(self.weights)

    def exchange(self, part_name: str, t: int, i: int) -> str | None:
        """Which clients the part wants for its i-th extra pass of round t, if any."""
        self.t = t
        whom = self._part(part_name).exchange(self, t, i)
        self._check_state()
        return whom

    def broadcast(self, t: int) -> tuple[dict[str, dict[str, Any]], int]:
        """What the parts send with the model, and its bytes."""
        self.t = t
        extras = {part.name: to_host(part.broadcast(self)) for part in self.config.parts}
        self._check_state()
        return extras, size_in_bytes(extras)

    def model_bytes(self, t: int) -> int:
        """The bytes of a model that clients are sent in round t; what parts keep at the clients is not sent."""
        return self.model.bytes_sent(self.config.parts, t)

    def take_news(self) -> tuple[dict[str, float], dict[str, Any], float, list[str]]:
        """What parts have reported since the last call, references to what they share, its new bytes, and notices."""
        metrics, newly_shared, notices = self.metrics, self.newly_shared, self.notices
        self.metrics, self.newly_shared, self.notices = {}, 0.0, []
        return metrics, self.shared_references, newly_shared, notices

    def route(self, part_name: str, t: int, clients: list[int]) -> dict[int, int]:
        """Which model each client trains, where it is not the first."""
        self.t = t
        route = self._part(part_name).route(self, t, clients) or {}
        self._check_state()
        return route

    def receive(self, part_name: str, t: int, sums: int, *arrived: Any) -> None:
        """Give a part the replies of its extra pass: first so many sums, then the clients' uploads."""
        self.t = t
        self._part(part_name).receive(self, self._uploads(part_name, add_up(arrived[:sums]), arrived[sums:]))
        self._check_state()

    def aggregate(self, t: int, trained: Mapping[int, int], sums: int, *arrived: Any) -> list[np.ndarray]:
        """Average the models, and return them; what has arrived is kept for `update`.

        `trained` is model -> number of clients that trained it; further arguments are as for `receive`.
        """
        self.t = t
        self.arrived = totals, _ = add_up(arrived[:sums]), arrived[sums:]
        personal = self._personal(t)
        deciding = next((part for part in self.config.parts if part.overrides("aggregate")), None)
        for i, before in enumerate(self.weights):
            if (total := totals.get(f"model/{i}")) is not None:  # else nobody trained this model
                mean = decode_mean(total)
                mean = mean if personal is None else np.where(personal, before, mean)
                if deciding is not None:
                    self.averaged_model, self.averaged_clients = i, trained[i]
                    self._decide(deciding, before, mean, personal)
                    self._check_state()
                self.weights[i] = mean
        return list(self.weights)

    def update(self, t: int) -> list[np.ndarray]:
        """Let the parts update, by what has arrived for `aggregate`; returns the models, as they are then."""
        self.t = t
        (totals, uploads), self.arrived = self.arrived, ({}, ())
        for part in self.config.parts:
            before = [weights.copy() for weights in self.weights] if not part.updates_models else []
            part.update(self, self._uploads(part.name, totals, uploads))
            self._check_state()
            if not all(map(np.array_equal, before, self.weights)):
                raise RunFailure(f"{part.name} changed the models in `update`; it must not say updates_models = False")
        if self.config.feature_kl:
            moments = [each for _, each in self._uploads(feature_kl.NAME, totals, uploads).each]
            if (divergence := feature_kl.mean_kl(moments)) is not None:
                self.metrics[feature_kl.NAME] = divergence
        return list(self.weights)

    def sample_features(self, t: int, count: int) -> LabelledFeatures:
        """Features and labels of the parts that have a generator, by kind."""
        self.t = t
        made = {part.name: part.sample_features(self, count) for part in self.config.parts}
        return {f"generated ({name})": to_host(pair) for name, pair in made.items() if pair is not None}

    def privacy(self, t: int) -> tuple[list[Figure], dict[str, tuple[np.ndarray, np.ndarray]]]:
        """What is certified, and the vectors that parts gave to all clients, with their classes, to be attacked."""
        self.t = t
        figures = [Figure("model.epsilon", None, note="no certificate: trained without clipping and noise")]
        means = {}
        for part in self.config.parts:
            if part.overrides("reply") or part.overrides("end"):  # it shares something
                figures += [replace(figure, name=f"{part.name}.{figure.name}") for figure in part.certificate(self)]
            if (shared := part.shared_means(self)) is not None:
                means[part.name] = to_host(shared)
        return figures, means

    def snapshot(self) -> tuple[dict[str, Any], dict[str, int]]:
        """What has to be kept to go on after this round, and since when the parts share what they share."""
        kept = {"weights": self.weights, "state": state_to_host(self.state)}
        return copy.deepcopy(kept), dict(self.shared_since)  # parts write into their state, and this is read later

    def restore(self, kept: dict[str, Any], shared: dict[str, tuple[int, pa.Table]]) -> list[np.ndarray]:
        """Go back to a snapshot; returns the models."""
        self.weights = [np.array(weights) for weights in kept["weights"]]
        self.state = state_to_device(kept["state"], self.device) if self.config.parts else {}
        for part_name, (self.t, table) in shared.items():
            self.share(part_name, table)
        self.metrics, self.newly_shared, self.notices = {}, 0.0, []
        return list(self.weights)

    def export(self) -> tuple[list[dict[str, np.ndarray]], dict[str, dict[str, Any]]]:
        """The global models by parameter name, and the parts' state."""
        from raysim.training.client import initial_model

        layout = initial_model(self.config, self.data, self.device)  # `model` is the parts' to change
        models = [layout.export(to_device(weights, self.device)) for weights in self.weights]
        return models, state_to_host(self.state)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _check_state(self) -> None:
        """Refuse, at the end of a hook, what it has put into a state that cannot be kept there."""
        for part in self.config.parts:
            check_state(part.name, self.state.get(part.name))

    def _part(self, name: str) -> Part:
        return next(part for part in self.config.parts if part.name == name)

    def _decide(self, part: Part, before: np.ndarray, mean: np.ndarray, personal: np.ndarray | None) -> None:
        """Put what the part makes of the averaged parameters into the mean; buffers and what is personal stay."""
        size = self.model.trainable
        made = np.asarray(part.aggregate(self, before[:size].copy(), mean[:size].copy()), np.float32)
        if made.shape != (size,):
            raise RunFailure(f"{part.name} made weights of shape {made.shape}, not {(size,)}")
        if not np.abs(made).max() < MEAN_LIMIT:  # also when it is not a number
            raise RunFailure(f"{part.name} made weights above {MEAN_LIMIT:.3g}, or none; lower its learning rate")
        mean[:size] = made if personal is None else np.where(personal[:size], before[:size], made)

    def _personal(self, t: int) -> np.ndarray | None:
        if not any(part.overrides("personal") for part in self.config.parts):
            return None
        return to_host(self.model.personal_mask(self.config.parts, t))

    def _uploads(self, part_name: str, totals: Sums, uploads: Sequence[EachUpload]) -> Uploads:
        prefix = f"{part_name}/"
        names = sorted(name for name in totals if name.startswith(prefix))
        decoded = {name.removeprefix(prefix): decode_sum(totals[name]) for name in names}
        added = to_device(decoded, self.device) if decoded else {}
        pairs = [(k, each[part_name]) for chunk in uploads if chunk for k, each in chunk if part_name in each]
        return Uploads(added, sorted(pairs, key=lambda pair: pair[0]))
