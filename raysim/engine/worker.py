"""The client actor: runs passes over groups of clients, each a pure function of broadcast, client data and state.

An ordinary class. Under Ray it is made an actor; the in-process runner calls it directly, with the same results.
"""

import logging
import traceback
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from ray.exceptions import RayError

from raysim.data.federated import Federation, assigned_gpus, fetch
from raysim.engine.evaluator import Evaluation
from raysim.engine.fixed_point import NotSummable, encode_mean, encode_sum
from raysim.engine.messages import Broadcast, ClientFailure, ClientReport
from raysim.methods.base import Part, Upload
from raysim.tensors import size_in_bytes, to_device, to_host
from raysim.training import fused
from raysim.training.client import PERSONAL, Client, begin, forward, initial_model, split_labelled, train
from raysim.training.device import compiled, fingerprint, prepare_torch
from raysim.training.profiling import FlopCounter, profiling

log = logging.getLogger(__name__)  # on Ray the actor's own log, which the dashboard shows


@dataclass
class Answer:
    """What one client's part of a pass gives."""

    report: ClientReport
    each: dict | None  # what travels client by client
    sums: dict[str, torch.Tensor]  # its terms of the sums, encoded
    state: dict | None = None


class Worker(Evaluation):
    """Trains, answers exchanges and evaluates for whichever clients and test batches it is given."""

    def __init__(self, federation):
        self.federation: Federation = fetch(federation)
        self.config = self.federation.config
        self.device = prepare_torch(self.config)
        self.model = initial_model(self.federation, self.device)
        channels = (1, len(self.federation.mean), 1, 1)
        self.mean = torch.tensor(self.federation.mean, device=self.device).view(channels)
        self.std = torch.tensor(self.federation.std, device=self.device).view(channels)
        self.stack = fused.Stack(self.model, self.config.fuse, self.config.model) if self.config.fuse > 1 else None
        self.forward = compiled(forward, self.config, self.device)
        self.version = 0  # of the broadcast held
        self.weights: list[torch.Tensor] = []
        self.extras: dict[str, dict] = {}
        self.shared: dict = {}
        self.sums: dict[str, torch.Tensor] = {}
        self.summed = 0  # clients in the sums
        self.profile: tuple[str, str] | None = None  # not yet given away

    def hello(self) -> tuple[dict[str, object], list[int], int]:
        """Answers once the actor is up: what it runs on, the GPUs it was given, the bytes of one model."""
        return fingerprint(self.device), assigned_gpus(), self.model.weights.nbytes

    # -- passes over clients; each gives (reports, uploads, states), the last two as [(client, …), …] or None -------
    # `states`: client -> reference to the list of states in which an earlier pass returned its own

    def train(self, broadcast: Broadcast, groups: list[list[int]], states: dict[int, object]):
        """Local training; the trained models go into this actor's sums."""
        self._hold(broadcast)
        answers = []
        for group in groups:
            if self.stack is not None:
                answers += self._attempt(group, lambda group=group: self._train_together(group, states))
                continue
            for client_id in group:
                answers += self._attempt([client_id], lambda k=client_id: [self._train_alone(k, states)])
        return _columns(answers)

    def reply(self, broadcast: Broadcast, groups: list[list[int]], states: dict[int, object], part_name: str):
        """A part's extra exchange, for one fixed group of clients after the other."""
        self._hold(broadcast)
        part = next(p for p in self.config.parts if p.name == part_name)
        answers = []
        for group in groups:
            answers += self._attempt(group, lambda group=group: self._reply_together(group, states, part))
        return _columns(answers)

    def collect(self) -> tuple[int, dict[str, np.ndarray]]:
        """Hand over the sums since the last call, with over how many clients they are."""
        summed, sums = self.summed, self.sums
        self.summed, self.sums = 0, {}
        return summed, {key: to_host(total) for key, total in sums.items()}

    # -- inside ----------------------------------------------------------------------------------------------------

    def _hold(self, broadcast: Broadcast) -> None:
        """Fetch a new broadcast once, and start its sums from nothing."""
        self.broadcast = broadcast
        if broadcast.version != self.version:
            self.weights = to_device(fetch(broadcast.weights), self.device)
            self.extras = to_device(fetch(broadcast.extras) or {}, self.device)
            # Zero-copy: the table stays in the store, however many clients read it.
            self.shared = {name: fetch(reference) for name, reference in (broadcast.shared or {}).items()}
            self.sums, self.summed, self.version = {}, 0, broadcast.version

    def _client(self, client_id: int, states: dict[int, object]) -> Client:
        x, y = self._to_batch(*self.federation.clients.read(client_id))
        unlabelled = None
        if self.config.labelled is not None:
            x, y, unlabelled = split_labelled(x, y, self.config.labelled, self.config.seed, client_id)
        state = self._state(client_id, states)
        for part in self.config.parts:
            state.setdefault(part.name, {})
        weights = self.weights[self.broadcast.route.get(client_id, 0)]
        return Client(
            client_id, self.broadcast.t, self.config, self.federation.classes, self.model, weights, x, y,
            self.extras, state, self.shared, self.mean, self.std, client_id in states, unlabelled,
            forward=self.forward,
        )  # fmt: skip

    def _load(self, weights: torch.Tensor, mask: torch.Tensor | None, state: dict[str, dict]) -> None:
        """A client's model: the broadcast weights with what it keeps to itself."""
        self.model.load(weights)
        if mask is not None and PERSONAL in state:
            self.model.weights[mask] = state[PERSONAL]["weights"]

    def _state(self, client_id: int, states: dict[int, object]) -> dict[str, dict]:
        """What the client kept from its last pass."""
        return to_device(dict(fetch(states[client_id]))[client_id], self.device) if client_id in states else {}

    def _to_batch(self, x: np.ndarray, y: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        pixels = to_device(x, self.device).to(torch.float32, memory_format=torch.channels_last)
        return pixels.sub_(self.mean).div_(self.std), to_device(y, self.device)

    def _attempt(self, group: list[int], work: Callable[[], list[Answer]]) -> list[Answer]:
        """The work of clients that go together; if it raises, as --on-client-error says. Then add to the sums."""
        policy, errors, answers = self.config.on_client_error, [], []
        while not answers:
            try:
                answers = work()
            except ClientFailure as failure:
                errors.append(failure.message)
                over = policy == "stop" or len(errors) > self.config.client_retries
                if over and policy != "skip":
                    raise
                _log(failure)
                if over:
                    answers = [Answer(ClientReport(k, skipped=True), None, {}) for k in group]
        if errors:  # told with the first of the group
            answers[0].report = replace(answers[0].report, errors=(*errors, *answers[0].report.errors))
        for answer in answers:  # now that nothing can go wrong any more
            for key, term in answer.sums.items():
                if (total := self.sums.setdefault(key, term)) is not term and total.shape == term.shape:
                    total.add_(term)  # else the driver, which sees all shapes, drops the whole pass
            answer.sums = {}
        self.summed += len(answers)
        return answers

    def _train_alone(self, client_id: int, states: dict[int, object]) -> Answer:
        """A client's answer, trained by itself."""
        with self._blamed_on(client_id):
            client = self._client(client_id, states)
            with self._counted(client_id) as counter, self._profiled(client_id):
                terms, weight, uploads = self._train_one(client)
            return self._trained(client, terms, weight, uploads, _flops(counter))

    def _reply_together(self, group: list[int], states: dict[int, object], part: Part) -> list[Answer]:
        """The answers of a group in a part's exchange."""
        self.model.load(self.weights[0])
        with self._blamed_on(*group):
            clients = [self._client(k, states) for k in group]
            with self._counted(group[0]) as counter, self._profiled(group[0]):
                replies = part.reply(clients)
            flops = _flops(counter) / len(group)
            pairs = zip(clients, replies, strict=True)
            return [self._answer(client, {part.name: upload}, flops=flops) for client, upload in pairs]

    def _train_one(self, client: Client) -> tuple[dict[str, float], float, dict[str, Upload]]:
        """Loss terms, aggregation weight and uploads; the model holds the trained weights."""
        self._load(client.global_weights, self.model.personal_mask(self.config.parts, client.t), client.state)
        return train(client), *self._end(client)

    def _train_together(self, group: list[int], states: dict[int, object]) -> list[tuple]:
        """The answers of a group's clients, trained in the same steps (--fuse)."""
        mask = self.model.personal_mask(self.config.parts, self.broadcast.t)
        clients, starts, answers = [], [], []
        for client_id in group:
            with self._blamed_on(client_id):
                client = self._client(client_id, states)
                self._load(client.global_weights, mask, client.state)
                begin(client)
                clients.append(client)
                starts.append(self.model.weights.clone())
        self.model.module.eval()
        with self._blamed_on(*group), self._counted(*group) as counter, self._profiled(*group):
            trained = fused.train(self.stack, clients, starts)
        rows = sum(len(batch) for client in clients for batch in client.batches()) if counter else 0
        for client, weights, terms in trained:
            try:
                with self._blamed_on(client.id), self._counted(client.id) as own:
                    self.model.load(weights)
                    weight, uploads = self._end(client)
                    # Of the group's operations, its share by samples.
                    flops = _flops(counter) * sum(map(len, client.batches())) / rows + own.total if own else 0.0
                    answers.append(self._trained(client, terms, weight, uploads, flops))
            except ClientFailure as failure:
                if self.config.on_client_error != "skip":
                    raise
                _log(failure)
                # The others' work stands: what is wrong with this one is its own.
                answers.append(Answer(ClientReport(client.id, errors=(failure.message,), skipped=True), None, {}))
        return answers

    def _end(self, client: Client) -> tuple[float, dict[str, Upload]]:
        """Aggregation weight and uploads of a client whose trained weights the model holds."""
        config, model = self.config, self.model
        mask = model.personal_mask(config.parts, client.t)
        weight = float(client.samples) if config.weighting == "samples" else 1.0
        uploads: dict[str, Upload] = {}
        for part in config.parts:
            own_weight = part.weight(client)
            weight = weight if own_weight is None else own_weight
            if (upload := part.end(client)) is not None:
                uploads[part.name] = upload
        if mask is not None:
            client.state[PERSONAL] = {"weights": model.weights[mask].clone()}
        return weight, uploads

    def _trained(self, client: Client, terms: dict, weight: float, uploads: dict[str, Upload], flops: float):
        """The answer of a client whose trained weights the model holds."""
        if self.model.weights.shape != client.global_weights.shape:
            raise ValueError(f"its model has {self.model.weights.shape}, not {client.global_weights.shape}")
        share = weight / self.broadcast.total_weight
        model = {f"model/{self.broadcast.route.get(client.id, 0)}": encode_mean(self.model.weights, share)}
        return self._answer(client, uploads, model, terms, self.model.weights.nbytes, flops)

    def _answer(
        self, client: Client, uploads: dict[str, Upload], sums: dict[str, torch.Tensor] | None = None,
        terms: dict[str, float] | None = None, sent: int = 0, flops: float = 0.0,
    ) -> Answer:  # fmt: skip
        """What the client gives; `sums` has its further terms of the sums."""
        each, sums, shapes = {}, sums or {}, {}
        for name, upload in uploads.items():
            sums |= {f"{name}/{key}": encode_sum(value, self.broadcast.cohort) for key, value in upload.sum.items()}
            if alone := upload.each | upload.rows | upload.told:
                each[name] = to_host(alone)
            shapes |= upload.shapes(name)
            sent += sum(map(size_in_bytes, (upload.sum, upload.each, upload.rows)))
        has_state = client.had_state or any(client.state.values())
        profile, self.profile = self.profile, None
        report = ClientReport(client.id, client.samples, terms or {}, sent, shapes, flops, profile, has_state=has_state)
        return Answer(report, each or None, sums, to_host(client.state) if has_state else None)

    def _counted(self, *clients: int):
        """Counts operations if one of these clients (or the group it leads) is to be counted: that slows it down."""
        return FlopCounter() if self.broadcast.counted in clients else nullcontext()

    @contextmanager
    def _profiled(self, *clients: int):
        """Profiles what is done for one of these clients, if that is asked for; the next answer carries it."""
        if self.broadcast.profiled not in clients:
            yield
            return
        with profiling() as found:
            yield
        self.profile = found[0]

    @contextmanager
    def _blamed_on(self, *clients: int):
        """Whatever a client's work raises comes out with the client (or those it may be), the round and the method."""
        who = f"client {clients[0]}" if len(clients) == 1 else f"one of the clients {', '.join(map(str, clients))}"
        where = f"{who} failed in round {self.broadcast.t} ({self.config.method})"
        try:
            yield
        except (RayError, torch.OutOfMemoryError):  # what it needed is gone or taken: not the client's doing
            raise
        except NotSummable as error:
            raise ClientFailure(f"{where}: its update {error}; a lower --lr usually helps", "") from error
        except Exception as error:
            raise ClientFailure(f"{where}: {type(error).__name__}: {error}", traceback.format_exc()) from error


def _log(failure: ClientFailure) -> None:
    """The traceback of a failure the run goes on after: the driver hears only its message."""
    log.warning("%s\n%s", failure.message, failure.traceback)


def _columns(answers: list[Answer]) -> tuple[list, list | None, list | None]:
    """Answers as (reports, uploads, states); None where nobody has any, so that nothing is stored."""
    uploads = [(a.report.client, a.each) for a in answers if a.each]
    states = [(a.report.client, a.state) for a in answers if a.state is not None]
    return [a.report for a in answers], uploads or None, states or None


def _flops(counter: FlopCounter | None) -> float:
    return float(counter.total) if counter else 0.0
