"""The client actor: runs passes over groups of clients, each a pure function of broadcast, client data and state.

An ordinary class. Under Ray it is made an actor; the in-process runner calls it directly, with the same results.
"""

import math
import traceback
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from torch.nn import functional as F

from raysim.engine import fused
from raysim.engine.client import (
    PERSONAL,
    Client,
    begin,
    forward,
    initial_model,
    shared_rows,
    size_in_bytes,
    to_device,
    to_host,
    train,
)  # fmt: skip
from raysim.engine.device import assigned_gpus, compiled, fingerprint, prepare_torch
from raysim.engine.exact import NotSummable, encode_mean, encode_sum
from raysim.engine.flops import FlopCounter, profiling
from raysim.engine.messages import LOSS_BITS, Broadcast, ClientFailure, ClientReport
from raysim.engine.store import Federation, fetch
from raysim.methods.base import Upload, overrides
from raysim.rng import stream


class Worker:
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

    def hello(self) -> tuple[dict[str, object], list[int]]:
        """Answers once the actor is up: what it runs on, and the GPUs it was given."""
        return fingerprint(self.device), assigned_gpus()

    # -- passes over clients; each gives (reports, uploads, states), the last two as [(client, …), …] or None -------
    # `states`: client -> reference to the list of states in which an earlier pass returned its own

    def train(self, broadcast: Broadcast, groups: list[list[int]], states: dict[int, object]):
        """Local training; the trained models go into this actor's sums."""
        self._hold(broadcast)
        answers = []
        for group in groups:
            if self.stack is not None:
                answers += self._train_together(group, states)
                continue
            for client_id in group:
                with self._blamed_on(client_id):
                    client = self._client(client_id, states)
                    with self._counted(client_id) as counter, self._profiled(client_id):
                        terms, weight, uploads = self._train_one(client)
                    answers.append(self._trained(client, terms, weight, uploads, _flops(counter)))
        return _columns(answers)

    def reply(self, broadcast: Broadcast, groups: list[list[int]], states: dict[int, object], part_name: str):
        """A part's extra exchange, for one fixed group of clients after the other."""
        self._hold(broadcast)
        part = next(p for p in self.config.parts if p.name == part_name)
        answers = []
        for group in groups:
            self.model.load(self.weights[0])
            with self._blamed_on(group[0]):
                clients = [self._client(k, states) for k in group]
                with self._counted(group[0]) as counter, self._profiled(group[0]):
                    replies = part.reply(clients)
                for client, upload in zip(clients, replies, strict=True):
                    answers.append(self._answer(client, {part.name: upload}, flops=_flops(counter) / len(group)))
        return _columns(answers)

    def collect(self) -> tuple[int, dict[str, np.ndarray]]:
        """Hand over the sums since the last call, with over how many clients they are."""
        summed, sums = self.summed, self.sums
        self.summed, self.sums = 0, {}
        return summed, {key: to_host(total) for key, total in sums.items()}

    # -- evaluation ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(
        self, broadcast: Broadcast, groups: list[list[int]], states: dict[int, object] | None = None
    ) -> tuple[int, int | None]:
        """Correct predictions and summed loss (in units of 2^-20; None if not finite) over these test batches.

        With `states`, batch k is client k's and predicted by its own model.
        """
        self._hold(broadcast)
        mask = None if states is None else self.model.personal_mask(self.config.parts, broadcast.t)
        predictor = next((p for p in self.config.parts if overrides(p, "predict")), None)
        self.model.load(self.weights[0])
        everyone = [self._predictor(i) for i in range(len(self.weights))]
        correct, loss = 0, 0
        for batch in (b for group in groups for b in group):
            if states is not None:
                self._load(self.weights[0], mask, self._state(batch, states))
            x, y = self._to_batch(*self.federation.test.read(batch))
            logits = predictor.predict(everyone, x) if predictor else self.model.module(x)
            correct += int((logits.argmax(1) == y).sum())
            batch_loss = F.cross_entropy(logits, y, reduction="sum").item()
            finite = loss is not None and math.isfinite(batch_loss)
            loss = loss + round(batch_loss * 2.0**LOSS_BITS) if finite else None
        return correct, loss

    @torch.no_grad()
    def sample_features(self, broadcast: Broadcast, groups: list[list[int]], states: dict[int, object], count: int):
        """Kind -> features and labels: of test images by the models evaluated, of what is shared by the global one."""
        self._hold(broadcast)
        mask = self.model.personal_mask(self.config.parts, broadcast.t)
        each = -(-count // sum(map(len, groups)))  # of every test batch
        real = []
        for item in (i for group in groups for i in group):
            self._load(self.weights[0], mask, self._state(item, states))
            x, y = self._to_batch(*(rows[:each] for rows in self.federation.test.read(item)))
            real.append((self.model.module.features(x), y))
        kinds = {"real": tuple(torch.cat(column) for column in zip(*real, strict=True))}
        self.model.load(self.weights[0])
        for name, table in self.shared.items():
            rows = stream(self.config.seed, "features", broadcast.t).permutation(table.num_rows)[:count]
            x, y = shared_rows(table, rows, self.device)
            kinds[f"synthetic ({name})"] = self.model.module.features(x), y
        return to_host(kinds)

    def _predictor(self, index: int):
        def predict(x: torch.Tensor) -> torch.Tensor:
            self.model.load(self.weights[index])
            return self.model.module(x)

        return predict

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
        state = self._state(client_id, states)
        for part in self.config.parts:
            state.setdefault(part.name, {})
        weights = self.weights[self.broadcast.route.get(client_id, 0)]
        return Client(
            client_id, self.broadcast.t, self.config, self.federation.classes, self.model, weights, x, y,
            self.extras, state, self.shared, self.mean, self.std, client_id in states, forward=self.forward,
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
            with self._blamed_on(client.id), self._counted(client.id) as own:
                self.model.load(weights)
                weight, uploads = self._end(client)
                # Of the group's operations, its share by samples.
                flops = _flops(counter) * sum(map(len, client.batches())) / rows + own.total if own else 0.0
                answers.append(self._trained(client, terms, weight, uploads, flops))
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
        """Add the model, and answer."""
        share = weight / self.broadcast.total_weight
        self._add(f"model/{self.broadcast.route.get(client.id, 0)}", encode_mean(self.model.weights, share))
        return self._answer(client, uploads, terms, self.model.weights.nbytes, flops)

    def _answer(self, client: Client, uploads: dict[str, Upload], terms: dict | None = None, sent: int = 0, flops=0.0):
        """Add what is summed; give (report, what travels client by client, state)."""
        each = {}
        for name, upload in uploads.items():
            for key, value in upload.sum.items():
                self._add(f"{name}/{key}", encode_sum(value, self.broadcast.cohort))
            if upload.each:
                each[name] = to_host(upload.each | upload.told)
            sent += size_in_bytes(upload.sum) + size_in_bytes(upload.each)
        self.summed += 1
        has_state = client.had_state or any(client.state.values())
        profile, self.profile = self.profile, None
        report = ClientReport(client.id, client.samples, terms or {}, sent, flops, profile, has_state)
        return report, (client.id, each) if each else None, (client.id, to_host(client.state)) if has_state else None

    def _add(self, key: str, term: torch.Tensor) -> None:
        self.sums[key] = self.sums[key].add_(term) if key in self.sums else term

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
        except NotSummable as error:
            raise ClientFailure(f"{where}: its update {error}; a lower --lr usually helps", "") from error
        except Exception as error:
            raise ClientFailure(f"{where}: {type(error).__name__}: {error}", traceback.format_exc()) from error


def _flops(counter: FlopCounter | None) -> float:
    return float(counter.total) if counter else 0.0


def _columns(answers: list[tuple]) -> tuple[list, list | None, list | None]:
    """Answers client by client as (reports, uploads, states); None where nobody has any, so nothing is stored."""
    reports, uploads, states = ([cell for cell in column if cell] for column in zip(*answers, strict=True))
    return reports, uploads or None, states or None
