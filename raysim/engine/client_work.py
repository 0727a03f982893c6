"""The clients' side of a pass: local training and replies, group by group, added up exactly at the actor."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from raysim import models
from raysim.data.federated import ChunkReader
from raysim.engine.failures import ClientFailure, Decision, FailurePolicy
from raysim.engine.fixed_point import ExactSums, NotSummable, Overweight, Term, mean_term, sum_term
from raysim.engine.hosted_model import ClientStates, HostedModel
from raysim.engine.messages import Broadcast, ClientReport, PassAnswer, Reports, States
from raysim.engine.own_code import described, hook_of, is_own, of_hook, trace_of
from raysim.engine.prefetch import Prefetch
from raysim.engine.work_queue import Group
from raysim.measures import feature_kl
from raysim.methods.base import Part, Upload
from raysim.methods.common.contract import HookError
from raysim.state import state_to_host
from raysim.tensors import size_in_bytes, to_host
from raysim.training import fused
from raysim.training.client import PERSONAL, Client, begin, forward, split_labelled, train
from raysim.training.device import compiled, peak_memory, trouble_of
from raysim.training.profiling import FlopCounter, profiling

LONE_SAMPLE = "Expected more than 1 value per channel when training"  # torch's batch-norm, of a batch of one

log = logging.getLogger(__name__)  # on Ray the actor's own log, which the dashboard shows


@dataclass
class ClientAnswer:
    """What one client's work in a pass results in."""

    report: ClientReport
    each: dict[str, Any] | None = None  # what travels client by client, by part
    sums: dict[str, Term] = field(default_factory=dict)  # its terms of the sums
    state: dict[str, Any] | None = None


@dataclass
class Trained:
    """A client after its local steps; the hosted model holds its weights."""

    client: Client
    terms: dict[str, float]  # mean of each loss term
    weight: float  # in the average
    uploads: dict[str, Upload]  # by part
    flops: float


class ClientWork:
    """Trains clients and answers exchanges; keeps the sums of a pass until they are collected."""

    def __init__(self, hosted: HostedModel):
        self.hosted, self.config = hosted, hosted.config
        self.policy = FailurePolicy.of(self.config)
        fuse = self.config.fuse_size
        self.stack = fused.Stack(hosted.model, fuse, self.config.model) if fuse > 1 else None
        self.forward = compiled(forward, self.config, hosted.device)
        self.reader = ChunkReader(hosted.data.clients)
        self.prefetch = Prefetch.on(hosted.device, self.reader.read)
        self.sums = ExactSums()
        self.summed = 0  # clients in the sums
        self.profile: tuple[str, str] | None = None  # not yet handed over with a report
        self.held_out: tuple[np.ndarray, np.ndarray] | None = None  # images and labels of --feature-kl, once needed

    def train(self, broadcast: Broadcast, groups: list[Group], states: States) -> PassAnswer:
        """Train the clients of these groups; the trained models go into this actor's sums."""
        self._hold(broadcast)
        kept = self.hosted.read_states(states)
        answers: list[ClientAnswer] = []
        together = groups if self.stack is not None else [[client] for group in groups for client in group]
        for group, following in zip(together, [*together[1:], []], strict=True):
            if self.stack is not None:
                answers += self._attempt(group, partial(self._train_together, self.stack, group, following, kept))
            else:
                answers += self._attempt(group, partial(self._train_alone, group[0], following, kept))
        self.reader.release()
        return _columns(answers)

    def reply(self, broadcast: Broadcast, groups: list[Group], states: States, part_name: str) -> PassAnswer:
        """Answer a part's exchange, for one fixed group of clients after the other."""
        self._hold(broadcast)
        kept = self.hosted.read_states(states)
        part = next(p for p in self.config.parts if p.name == part_name)
        answers: list[ClientAnswer] = []
        for group in groups:
            answers += self._attempt(group, partial(self._reply_together, group, kept, part))
        self.reader.release()
        return _columns(answers)

    def collect(self) -> tuple[int, dict[str, np.ndarray]]:
        """Hand over the sums since the last call, with the number of clients in them."""
        summed, totals = self.summed, to_host(self.sums.totals)
        self._nothing_summed()
        return summed, totals

    # -- one client or group -----------------------------------------------------------------------------------------

    def _train_alone(self, client_id: int, following: Group, states: ClientStates) -> list[ClientAnswer]:
        """Train one client by itself; the pixels of those that follow are uploaded meanwhile."""
        with self._blamed_on(client_id):
            client = self._client(client_id, states)
            self.prefetch.begin(following)
            self._seed_model(client)
            with self._counted(client_id) as counter, self._profiled(client_id):
                self.hosted.load(client.global_weights, self.hosted.personal_mask(), client.state)
                terms = train(client)
                weight, uploads = self._end(client)
            return [self._trained(Trained(client, terms, weight, uploads, _flops(counter)))]

    def _train_together(
        self, stack: fused.Stack, group: Group, following: Group, states: ClientStates
    ) -> list[ClientAnswer]:
        """Train the clients of a group in the same vectorised steps (--fuse)."""
        mask, model = self.hosted.personal_mask(), self.hosted.model
        clients, starts = [], []
        for client_id in group:
            with self._blamed_on(client_id):
                client = self._client(client_id, states)
                self.hosted.load(client.global_weights, mask, client.state)
                begin(client)
                clients.append(client)
                starts.append(model.weights.clone())
        model.module.eval()
        self.prefetch.begin(following)
        self._seed_model(clients[0])
        with self._blamed_on(*group), self._counted(*group) as counter, self._profiled(*group):
            trained = fused.train(stack, clients, starts)
        rows = sum(sum(client.batch_sizes) for client in clients)
        answers = []
        for client, weights, terms in trained:
            try:
                with self._blamed_on(client.id), self._counted(client.id) as own:
                    model.load(weights)
                    weight, uploads = self._end(client)
                    # Of the group's operations, its share by samples.
                    flops = _flops(counter) * sum(client.batch_sizes) / rows + own.total if own else 0.0
                    answer = self._trained(Trained(client, terms, weight, uploads, flops))
                    # Its terms are added with those of the group, after the next client's weights have been loaded.
                    answer.sums = {key: term.kept() for key, term in answer.sums.items()}
                    answers.append(answer)
            except ClientFailure as failure:
                if self.policy.fused_client_failed() is not Decision.SKIP:
                    raise
                self._clean_up(failure)
                answers.append(ClientAnswer(ClientReport(client.id, errors=(failure.message,), skipped=True)))
        return answers

    def _reply_together(self, group: Group, states: ClientStates, part: Part) -> list[ClientAnswer]:
        """A group's replies in a part's exchange."""
        self.hosted.model.load(self.hosted.weights[0])
        with self._blamed_on(*group):
            clients = [self._client(k, states) for k in group]
            self._seed_model(clients[0])
            with self._counted(group[0]) as counter, self._profiled(group[0]):
                replies = part.ask("reply", clients)
            flops = _flops(counter) / len(group)
            pairs = zip(clients, replies, strict=True)
            return [self._answer(Trained(client, {}, 0.0, {part.name: upload}, flops)) for client, upload in pairs]

    def _client(self, client_id: int, states: ClientStates) -> Client:
        hosted = self.hosted
        x, y = hosted.to_batch(*self.prefetch.take(client_id))
        unlabelled = None
        if self.config.labelled is not None:
            x, y, unlabelled = split_labelled(x, y, self.config.labelled, self.config.seed, client_id)
        state = hosted.state_of(client_id, states)
        for part in self.config.parts:
            state.setdefault(part.name, {})
        return Client(
            id=client_id,
            t=hosted.broadcast.t,
            config=self.config,
            classes=hosted.data.classes,
            model=hosted.model,
            global_weights=hosted.weights[hosted.broadcast.route.get(client_id, 0)],
            x=x,
            y=y,
            broadcast=hosted.extras,
            state=state,
            shared=hosted.shared,
            normalisation=hosted.normalisation,
            kept=hosted.kept,
            had_state=client_id in states,
            unlabelled=unlabelled,
            forward=self.forward,
        )

    def _seed_model(self, client: Client) -> None:
        """Let what an own model draws (dropout) depend on the client and the round alone, not on who came before."""
        if models.draws(self.config.model):
            torch.manual_seed(int(client.stream("model").integers(2**63)))

    def _end(self, client: Client) -> tuple[float, dict[str, Upload]]:
        """Aggregation weight and uploads of a client whose trained weights the model holds."""
        model, mask = self.hosted.model, self.hosted.personal_mask()
        weight = float(client.samples) if self.config.weighting == "samples" else 1.0
        uploads: dict[str, Upload] = {}
        for part in self.config.parts:
            own_weight = part.ask("weight", client)
            weight = weight if own_weight is None else float(own_weight)
            if (upload := part.ask("end", client)) is not None:
                uploads[part.name] = upload
        if mask is not None:
            client.state[PERSONAL] = {"weights": model.weights[mask].clone()}
        return weight, uploads

    def _trained(self, done: Trained) -> ClientAnswer:
        """The answer of a client whose trained weights the model holds: its uploads, and its model in the sums."""
        model, broadcast = self.hosted.model, self.hosted.broadcast
        if model.weights.shape != done.client.global_weights.shape:
            raise ValueError(f"its model has {model.weights.shape}, not {done.client.global_weights.shape}")
        key = f"model/{broadcast.route.get(done.client.id, 0)}"
        try:
            term = mean_term(model.weights, done.weight / broadcast.total_weight)
        except Overweight as error:
            giver = next(part.name for part in self.config.parts if part.overrides("weight"))
            raise of_hook(HookError(f"it returned {done.weight:.6g}, {error}"), giver, "weight") from error
        except NotSummable as error:
            odd = [name for name, value in done.terms.items() if not math.isfinite(value)]
            hook = "fused_loss" if self.stack is not None else "loss"
            losses = ["its cross-entropy" if name == "ce" else f"`{hook}` of {name}" for name in odd]
            why = f" (not finite: {', '.join(losses)})" if losses else ""
            raise NotSummable(f"its update {error}{why}") from error
        answer = self._answer(done, {key: term}, model.bytes_sent(self.config.parts, broadcast.t))
        if self.config.feature_kl and (moments := self._class_moments()):
            answer.each = (answer.each or {}) | {feature_kl.NAME: moments}
        return answer

    @torch.no_grad()
    def _class_moments(self) -> dict[str, np.ndarray]:
        """What --feature-kl compares: moments of the features of held-out images by the model as it is trained now."""
        if self.held_out is None:
            self.held_out = feature_kl.held_out_images(self.hosted.data, self.config.feature_kl)
        images, labels = self.held_out
        size, module = self.config.eval_batch, self.hosted.model.module
        batches = [
            self.hosted.to_batch(images[i : i + size], labels[i : i + size]) for i in range(0, len(labels), size)
        ]
        if not batches:
            return {}
        features = torch.cat([module.features(x) for x, _ in batches])
        return to_host(feature_kl.class_moments(features, torch.cat([y for _, y in batches])))

    def _answer(self, done: Trained, sums: dict[str, Term] | None = None, sent: int = 0) -> ClientAnswer:
        """The client's uploads and state, added to these terms of the sums and bytes sent."""
        client, trained, sums = done.client, bool(sums), sums or {}
        each: dict[str, Any] = {}
        shapes: dict[str, tuple] = {}
        for name, upload in done.uploads.items():
            for key, value in upload.sum.items():
                try:
                    sums[f"{name}/{key}"] = sum_term(value, self.hosted.broadcast.cohort)
                except NotSummable as error:
                    hook = "end" if trained else "reply"
                    raise NotSummable(f"its upload '{key}' (`{hook}` of {name}) {error}") from error
            if alone := upload.client_by_client():
                each[name] = to_host(alone)
            shapes |= upload.shapes(name)
            sent += sum(map(size_in_bytes, (upload.sum, upload.each, upload.rows)))
        has_state = client.had_state or any(client.state.values())
        profile, self.profile = self.profile, None
        report = ClientReport(
            client=client.id,
            samples=client.samples,
            terms=done.terms,
            bytes_up=sent,
            shapes=shapes,
            flops=done.flops,
            profile=profile,
            gpu_bytes=peak_memory(self.hosted.device),
            has_state=has_state,
        )
        return ClientAnswer(report, each or None, sums, state_to_host(client.state) if has_state else None)

    # -- around a client's work --------------------------------------------------------------------------------------

    def _hold(self, broadcast: Broadcast) -> None:
        """Hold the broadcast; the sums of a new pass start from nothing."""
        if self.hosted.hold(broadcast):
            self._nothing_summed()

    def _nothing_summed(self) -> None:
        self.sums.clear()
        self.summed = 0

    def _attempt(self, group: Group, work: Callable[[], list[ClientAnswer]]) -> list[ClientAnswer]:
        """Do the work of clients that go together, again or without them as the failure policy says; then add it up."""
        errors: list[str] = []
        answers: list[ClientAnswer] = []
        while not answers:
            began = time.perf_counter()
            try:
                answers = self._with_room(work)
            except ClientFailure as failure:
                errors.append(failure.message)
                decision = self.policy.client_failed(len(errors))
                if decision is Decision.STOP:
                    raise
                self._clean_up(failure)
                if decision is Decision.SKIP:
                    answers = [ClientAnswer(ClientReport(k, skipped=True)) for k in group]
        if errors:  # reported with the first of the group
            answers[0].report = replace(answers[0].report, errors=(*errors, *answers[0].report.errors))
        for answer in answers:  # now that nothing can go wrong any more
            self.sums.add(answer.sums)
            answer.sums = {}
        seconds = (time.perf_counter() - began) / len(answers)
        for answer in answers:
            if not answer.report.skipped:
                answer.report = replace(answer.report, seconds=seconds)
        self.summed += len(answers)
        return answers

    def _with_room(self, work: Callable[[], list[ClientAnswer]]) -> list[ClientAnswer]:
        """Do the work; where the device's memory is full, once more without anything that is kept for speed alone."""
        try:
            return work()
        except Exception as error:
            if trouble_of(error) != "memory":
                raise
            log.warning("out of memory, trying once more: %s", error)
        self.prefetch.begin([])
        self.hosted.free_memory()  # outside of `except`: the error's traceback holds the tensors of what failed
        return work()

    def _clean_up(self, failure: ClientFailure) -> None:
        """Log the traceback of a failure after which the run goes on, and put the model back as it was.

        The driver hears the message alone. What failed may have left the model in training mode or frozen.
        """
        if failure.traceback:
            log.warning("%s\n%s", failure.message, failure.traceback)
        self.hosted.model.module.eval().requires_grad_(True)

    def _counted(self, *clients: int) -> AbstractContextManager[FlopCounter | None]:
        """Counts operations if one of these clients (or the group it leads) is to be counted: that slows it down."""
        return FlopCounter() if self.hosted.broadcast.counted in clients else nullcontext()

    @contextmanager
    def _profiled(self, *clients: int) -> Iterator[None]:
        """Profiles the work if it is for the client to be profiled; the next report carries the profile."""
        if self.hosted.broadcast.profiled not in clients:
            yield
            return
        with profiling() as found:
            yield
        self.profile = found[0]

    @contextmanager
    def _blamed_on(self, *clients: int) -> Iterator[None]:
        """Turns what a client's work raises into a ClientFailure that names the client, the round and the method."""
        who = f"client {clients[0]}" if len(clients) == 1 else f"one of the clients {', '.join(map(str, clients))}"
        where = f"{who} failed in round {self.hosted.broadcast.t} ({self.config.method})"
        try:
            yield
        except NotSummable as error:
            raise ClientFailure(f"{where}: {error}; a lower --lr usually helps") from error
        except BaseException as error:
            if not is_own(error):  # nor is this
                raise
            place = " (`{1}` of {0})".format(*found) if (found := hook_of(error)) else ""
            hint = "; a batch has one sample: --drop-last leaves out a last one" if LONE_SAMPLE in str(error) else ""
            raise ClientFailure(f"{where}: {described(error)}{place}{hint}", trace_of(error)) from error


def _columns(answers: list[ClientAnswer]) -> PassAnswer:
    """The answers as columns; None where nobody has anything, so that nothing is stored."""
    uploads = [(a.report.client, a.each) for a in answers if a.each]
    states = [(a.report.client, a.state) for a in answers if a.state is not None]
    reports = replace(Reports.of([a.report for a in answers]), uploads=len(uploads))
    return PassAnswer(reports, uploads or None, states or None)


def _flops(counter: FlopCounter | None) -> float:
    return float(counter.total) if counter else 0.0
