"""The server: holds the models and the parts' server state; averages, updates, broadcasts.

An ordinary class. Under Ray an actor hosts it; the in-process runner calls it directly, with the same results.
Importing this does not import torch, so that the driver can name its methods.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.data.federated import FederatedData
from raysim.data.object_store import fetch, put
from raysim.engine.failures import RunFailure
from raysim.engine.fixed_point import SHARE_STEP, Overweight, add_up, decode_mean, decode_sum, share_of
from raysim.engine.messages import EachUpload, Trained
from raysim.engine.own_code import own_code
from raysim.engine.written import READ_ONLY, read_only, usable_metrics, usable_model, usable_models, usable_table
from raysim.errors import one_line
from raysim.measures import feature_kl
from raysim.methods.base import Part, Uploads
from raysim.methods.common.contract import HookError
from raysim.privacy.figures import Figure
from raysim.rng import stream
from raysim.state import state_to_device, state_to_host
from raysim.tensors import size_in_bytes, to_device, to_host

if TYPE_CHECKING:
    import pyarrow as pa
    import torch

    from raysim.config import RunConfig
    from raysim.data.normalisation import DeviceNormalisation
    from raysim.engine.runner import LabelledFeatures
    from raysim.models.flat import FlatModel

LEAST_SHARE = 2.0**-20  # of the planned weight: below it roundings show
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
        self.counted: dict[str, float] = {}  # what the engine itself reports beside it
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
        reference = put(usable_table(table, self.data.shape, self.data.classes))
        self.shared_references[part_name] = reference
        self.shared[part_name] = fetch(reference)  # the store's memory, so that ours is freed
        self.shared_since[part_name] = self.t
        self.newly_shared += table.nbytes if bytes_each is None else bytes_each
        self.counted["shared_bytes"] = sum(table.nbytes for table in self.shared.values())

    def notify(self, text: str) -> None:
        """Tell the user something in one line: it is printed, and recorded among the events."""
        self.notices.append(one_line(str(text)))

    # -- called by the simulation ------------------------------------------------------------------------------------

    def hello(self) -> None:
        """Answer once the server is up; the model is built meanwhile, while the client actors build theirs."""
        _ = self.model

    def begin(self, start: np.ndarray | None = None) -> list[np.ndarray]:
        """Start from these weights, or from the model's initial ones; returns the models."""
        self.weights = [to_host(self.model.weights).copy() if start is None else np.array(start)]
        for part in self.config.parts:
            self._ask(part, "setup")
        return list(self.weights)

    def exchange(self, part_name: str, t: int, i: int) -> str | None:
        """Which clients the part wants for its i-th extra pass of round t, if any."""
        self.t = t
        return self._ask(self._part(part_name), "exchange", t, i)

    def broadcast(self, t: int) -> tuple[dict[str, dict[str, Any]], int]:
        """What the parts send with the model, and its bytes."""
        self.t = t
        extras = {part.name: to_host(self._ask(part, "broadcast")) for part in self.config.parts}
        return extras, size_in_bytes(extras)

    def model_bytes(self, t: int) -> int:
        """The bytes of a model that clients are sent in round t; what parts keep at the clients is not sent."""
        with own_code(t):
            return self.model.bytes_sent(self.config.parts, t)

    def take_news(self) -> tuple[dict[str, float | None], dict[str, Any], float, list[str]]:
        """What parts have reported since the last call, references to what they share, its new bytes, and notices."""
        reported = {name: value if math.isfinite(value) else None for name, value in self.metrics.items()}
        metrics, newly_shared, notices = reported | self.counted, self.newly_shared, self.notices
        self._nothing_new()
        return metrics, self.shared_references, newly_shared, notices

    def route(self, part_name: str, t: int, clients: list[int]) -> dict[int, int]:
        """Which model each client trains, where it is not the first."""
        self.t = t
        return self._ask(self._part(part_name), "route", t, clients) or {}

    def receive(self, part_name: str, t: int, sums: int, *arrived: Any) -> None:
        """Give a part the replies of its extra pass: first so many sums, then the clients' uploads."""
        self.t = t
        self._ask(self._part(part_name), "receive", self._uploads(part_name, add_up(arrived[:sums]), arrived[sums:]))

    def aggregate(self, t: int, trained: Mapping[int, Trained], sums: int, *arrived: Any) -> list[np.ndarray]:
        """Average the models, and return them; what has arrived is kept for `update`.

        `trained` says who trained each model; further arguments are as for `receive`.
        """
        self.t = t
        self.arrived = totals, _ = add_up(arrived[:sums]), arrived[sums:]
        personal = self._personal(t)
        deciding = next((part for part in self.config.parts if part.overrides("aggregate")), None)
        for i, before in enumerate(self.weights):
            if (total := totals.get(f"model/{i}")) is not None:  # else nobody trained this model
                mean = self._mean(total, trained[i])
                mean = mean if personal is None else np.where(personal, before, mean)
                if deciding is not None:
                    self.averaged_model, self.averaged_clients = i, trained[i].clients
                    self._decide(deciding, before, mean, personal)
                self.weights[i] = mean
        return list(self.weights)

    def update(self, t: int) -> list[np.ndarray]:
        """Let the parts update, by what has arrived for `aggregate`; returns the models, as they are then."""
        self.t = t
        (totals, uploads), self.arrived = self.arrived, ({}, ())
        for part in self.config.parts:
            if part.overrides("update"):
                self._ask(part, "update", self._uploads(part.name, totals, uploads))
        if self.config.feature_kl:
            moments = [each for _, each in self._uploads(feature_kl.NAME, totals, uploads).each]
            if (divergence := feature_kl.mean_kl(moments)) is not None:
                self.counted[feature_kl.NAME] = divergence
        return list(self.weights)

    def sample_features(self, t: int, count: int) -> LabelledFeatures:
        """Features and labels of the parts that have a generator, by kind."""
        self.t = t
        made = {part.name: self._ask(part, "sample_features", count) for part in self.config.parts}
        return {f"generated ({name})": to_host(pair) for name, pair in made.items() if pair is not None}

    def privacy(self, t: int) -> tuple[list[Figure], dict[str, tuple[np.ndarray, np.ndarray]]]:
        """What is certified, and the vectors that parts gave to all clients, with their classes, to be attacked."""
        self.t = t
        figures = self._model_certificate()
        means = {}
        for part in self.config.parts:
            if part.overrides("reply") or part.overrides("end"):  # it shares something
                certified = self._ask(part, "certificate")
                figures += [replace(figure, name=f"{part.name}.{figure.name}") for figure in certified]
            if (shared := self._ask(part, "shared_means")) is not None:
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
        self._nothing_new()
        return list(self.weights)

    def export(self) -> tuple[list[dict[str, np.ndarray]], dict[str, dict[str, Any]]]:
        """The global models by parameter name, and the parts' state."""
        from raysim.training.client import initial_model

        layout = initial_model(self.config, self.data, self.device)  # `model` is the parts' to change
        models = [layout.export(to_device(weights, self.device)) for weights in self.weights]
        return models, state_to_host(self.state)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _part(self, name: str) -> Part:
        return next(part for part in self.config.parts if part.name == name)

    def _nothing_new(self) -> None:
        self.metrics, self.counted, self.newly_shared, self.notices = {}, {}, 0.0, []

    def _ask(self, part: Part, hook: str, *arguments: Any) -> Any:
        """Ask a part's hook, and see to what it has written: the models in `setup` and `update` only, and its metrics.

        A write in another hook would reach the clients in one process, and nobody on Ray.
        """
        writes = hook == "setup" or (hook == "update" and part.updates_models)
        before = list(self.weights)
        for weights in before:
            weights.flags.writeable = writes
        with own_code(self.t, part.name, hook, hint=READ_ONLY):
            found = part.ask(hook, self, *arguments)
            if writes:
                self.weights = usable_models(self.weights, len(self.model.weights))
            elif not (
                isinstance(self.weights, list)
                and len(self.weights) == len(before)
                and all(now is then for now, then in zip(self.weights, before, strict=True))
            ):
                also = "; the part says updates_models = False" if hook == "update" else ""
                raise HookError(f"it changed `server.weights`{READ_ONLY}{also}")
            self.metrics = usable_metrics(self.metrics)
        return found

    def _model_certificate(self) -> list[Figure]:
        """What the part that certifies the model says of it; where there is none, what is known without asking."""
        certifying = next((part for part in self.config.parts if part.overrides("model_certificate")), None)
        if certifying is not None:
            found = self._ask(certifying, "model_certificate")
            return [replace(figure, name=f"model.{figure.name}") for figure in found]
        silent = ", ".join(part.name for part in self.config.parts)
        also = f", and nothing is certified by {silent}" if silent else ""
        note = f"no certificate: averaging neither clips nor adds noise{also}"
        return [Figure("model.epsilon", None, note=note)]

    def _mean(self, total: np.ndarray, trained: Trained) -> np.ndarray:
        """The mean of a model, unless its clients' weights cannot be right."""
        share, planned = share_of(total), trained.share
        if planned is not None:
            if abs(share - planned) > trained.clients * SHARE_STEP:
                raise RunFailure(f"round {self.t} has added models with {share:.9g} of the weight, not {planned:.9g}")
            return decode_mean(total)
        giver = next(part.name for part in self.config.parts if part.overrides("weight"))
        with own_code(self.t, giver, "weight"):
            try:
                mean = decode_mean(total)
                if share < LEAST_SHARE:
                    raise Overweight(f"{share:.3g} times what was planned, too little to be exact")
            except Overweight as error:
                raise HookError(
                    f"the weights it returned add up to {error}; weigh clients on the scale of their samples (with "
                    "--weighting uniform of 1), and at least one above 0"
                ) from None
            return mean

    def _decide(self, part: Part, before: np.ndarray, mean: np.ndarray, personal: np.ndarray | None) -> None:
        """Put what the part makes of the averaged parameters into the mean; buffers and what is personal stay."""
        size = self.model.trainable
        found = self._ask(part, "aggregate", before[:size].copy(), mean[:size].copy())
        with own_code(self.t, part.name, "aggregate"):
            made = usable_model(to_host(found), size, "it returned")
        mean[:size] = made if personal is None else np.where(personal[:size], before[:size], made)

    def _personal(self, t: int) -> np.ndarray | None:
        if not any(part.overrides("personal") for part in self.config.parts):
            return None
        with own_code(t):
            return to_host(self.model.personal_mask(self.config.parts, t))

    def _uploads(self, part_name: str, totals: Sums, uploads: Sequence[EachUpload]) -> Uploads:
        prefix = f"{part_name}/"
        names = sorted(name for name in totals if name.startswith(prefix))
        decoded = {name.removeprefix(prefix): decode_sum(totals[name]) for name in names}
        added = to_device(decoded, self.device) if decoded else {}
        pairs = [(k, each[part_name]) for chunk in uploads if chunk for k, each in chunk if part_name in each]
        return Uploads(added, read_only(sorted(pairs, key=lambda pair: pair[0])))
