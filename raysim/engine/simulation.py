"""The round loop. One loop for every method, with or without Ray; it holds references, not data."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from raysim.data.federated import FederatedData
from raysim.engine.answers import misshapen
from raysim.engine.checkpoint import Checkpoint, CheckpointKeeper
from raysim.engine.costs import LearnedCosts
from raysim.engine.digest import digest
from raysim.engine.failures import ClientFailure, Decision, FailurePolicy, ServerLost
from raysim.engine.messages import Broadcast, ClientReport, Reports, States, Trained
from raysim.engine.own_code import own_code
from raysim.engine.round_metrics import RoundMetrics, is_evaluated
from raysim.engine.runner import LabelledFeatures, Runner, WorkerCalls
from raysim.engine.server import Server
from raysim.engine.stopping import length_settings, reason_to_stop
from raysim.engine.work_queue import Answers, Call, Pass, in_groups, spans
from raysim.errors import RaysimError
from raysim.methods.base import Part
from raysim.privacy.figures import Figure

if TYPE_CHECKING:
    import pyarrow as pa

    from raysim.config import RunConfig

T = TypeVar("T")
OnRound = Callable[[RoundMetrics], str | bool | None]  # a reason, or True, ends the run
Report = Callable[[RoundMetrics], object]


@dataclass
class Result:
    """What a run ends with."""

    models: list[dict[str, np.ndarray]]  # by parameter name; several where a method has several global models
    model_sha256: str
    server_state: dict[str, dict[str, Any]]  # part -> what it kept at the server
    server_state_sha256: str
    shared: dict[str, pa.Table]  # part -> the dataset it shared last, in the store's memory
    history: list[RoundMetrics] = field(default_factory=list)
    features: LabelledFeatures = field(default_factory=dict)  # if --tsne asks
    privacy: list[Figure] = field(default_factory=list)  # if --privacy asks
    measures: list[Figure] = field(default_factory=list)  # of shared images, if --measures asks
    profiles: dict[str, tuple[str, str]] = field(default_factory=dict)  # what was profiled -> table, Chrome trace
    stopped: str = ""  # why the run was ended before its last round


@dataclass
class BegunRound:
    """A round and how far it has come: checkpoints between its exchanges hold it."""

    metrics: RoundMetrics
    passes: dict[str, int] = field(default_factory=dict)  # part -> exchanges that are done

    def to_dict(self) -> dict[str, Any]:
        return {"line": copy.deepcopy(self.metrics.to_line()), "passes": dict(self.passes)}

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> BegunRound:
        return cls(RoundMetrics.from_line(kept["line"]), dict(kept["passes"]))


class Simulation:
    """Runs a configuration on a runner that has been started."""

    def __init__(
        self, config: RunConfig, data: FederatedData, runner: Runner, model_bytes: int,
        checkpoints: CheckpointKeeper | None = None, start: np.ndarray | None = None,
    ):  # fmt: skip
        self.config, self.data, self.runner, self.checkpoints = config, data, runner, checkpoints
        self.start = start  # weights, where not random ones
        self.model_bytes = model_bytes
        self.policy = FailurePolicy.of(config)
        self.costs = LearnedCosts(data.sizes)
        self.stopped = ""  # why the run ends before its last round
        self.version = 0  # of the last broadcast
        self.counted_faults = replace(runner.faults)  # that the metrics of a round include
        self.calls: dict[str, list[Call]] = {}  # of this round, by phase
        self.profiles: dict[str, tuple[str, str]] = {}  # training, or a part's exchange -> table, Chrome trace
        self.weights: Any = None  # reference to the server's models
        self.states: States = {}
        self.changed: set[int] = set()  # clients whose state no checkpoint has
        self.shared: dict[str, Any] = {}  # part -> reference to the dataset it shares
        self.begun: BegunRound | None = None  # the next round, where it was stopped between two exchanges

    def run(
        self, on_round: OnRound = lambda metrics: None, history: list[RoundMetrics] | None = None,
        checkpoint: Checkpoint | None = None, report: Report = lambda metrics: None,
    ) -> Result:  # fmt: skip
        """Do all rounds after those of `history`, from a checkpoint of the last.

        `on_round` gets each as it ends, and may end the run; then it goes to `report`, with what only a last round has.
        Where the server is lost, or something that only it or a lost node had, the rounds since the last checkpoint
        are repeated, and told again.
        """
        history = history or []
        losses = 0
        while True:
            reached = len(history)
            try:
                self.restore(checkpoint)
                self.rounds(history, on_round, report)
                return self.finish(history)
            except ServerLost as lost:
                losses = 1 if len(history) > reached else losses + 1
                if self.policy.server_lost(losses) is Decision.STOP:
                    raise
                began = time.monotonic()
                self.runner.restart_server(lost)
                checkpoint = self.checkpoints.load() if self.checkpoints else None
                kept = checkpoint.round if checkpoint else 0
                del history[kept:]
                self.runner.on_event("server_back", seconds=round(time.monotonic() - began, 1), round=kept)

    def rounds(self, history: list[RoundMetrics], on_round: OnRound, report: Report) -> None:
        """Do one round after another; each is added to the history, told, and kept in a checkpoint."""
        if history and history[-1].is_complete:  # else it was not to be the last, and one more has what that has
            self.stopped = self.stopped or reason_to_stop(self.config, history)
        while len(history) < self.config.rounds and not self.stopped:
            metrics, typical = self.round(len(history) + 1)
            self.count_faults(metrics)
            history.append(metrics)
            last = metrics.round == self.config.rounds
            self.stopped = "" if last else reason_to_stop(self.config, history)
            if last or self.stopped:
                self.complete(metrics, typical)
            asked = on_round(metrics)
            if asked and not (last or self.stopped):
                self.stopped = "a callback ended the run" if asked is True else asked
                self.complete(metrics, typical)
            report(metrics)
            if self.stopped:
                self.runner.on_event("ended_early", round=metrics.round, text=self.stopped)
            self.save(metrics.round, last=last or bool(self.stopped))
        if self.checkpoints:
            self.checkpoints.wait()

    def finish(self, history: list[RoundMetrics]) -> Result:
        """Collect what the run ends with."""
        t = len(history)
        features = self.sample_features(t) if self.config.tsne else {}
        privacy = self.measure_privacy(history) if self.config.privacy else []
        measures = self.compare_images(t) if self.config.measures and self.shared else []
        shared = {name: self.runner.get(reference) for name, reference in self.shared.items()}
        models, state = self.ask(Server.export)
        return Result(
            models=models,
            model_sha256=digest(models),
            server_state=state,
            server_state_sha256=digest([state]),
            shared=shared,
            history=history,
            features=features,
            privacy=privacy,
            measures=measures,
            profiles=self.profiles,
            stopped=self.stopped,
        )

    def restore(self, checkpoint: Checkpoint | None) -> None:
        """Go to where the checkpoint was made, or to before the first round."""
        self.states, self.changed, self.shared = {}, set(), {}
        self.begun = BegunRound.from_dict(checkpoint.begun) if checkpoint and checkpoint.begun else None
        ended = (checkpoint and checkpoint.stopped) or {}
        self.stopped = ended["reason"] if ended.get("length") == length_settings(self.config) else ""
        if checkpoint is None:
            if self.start is None and self.config.start_from is not None:
                raise RaysimError(
                    f"--start-from {self.config.start_from} is gone, and no checkpoint of this run is whole; put back "
                    "what it started from, then resume it"
                )
            self.weights = self.runner.call_server(Server.begin, self.start)
            return
        for batch in checkpoint.states:
            self.states |= dict.fromkeys((client for client, _ in batch), self.runner.put(batch))
        self.weights = self.runner.call_server(Server.restore, checkpoint.server, checkpoint.shared)
        _, self.shared, _, _ = self.ask(Server.take_news)

    def save(self, t: int, begun: BegunRound | None = None, last: bool = False) -> None:
        """Begin a checkpoint, which is written while the next round runs, or the next pass of a begun round."""
        due = begun is not None or last or t % (self.config.checkpoint_every or 1) == 0
        if self.checkpoints and due:
            snapshot = self.runner.call_server(Server.snapshot, returns=2)
            states = {client: self.states[client] for client in sorted(self.changed)}
            self.changed = set()
            stopped = {"reason": self.stopped, "length": length_settings(self.config)} if self.stopped else None
            self.checkpoints.save(t, snapshot, states, dict(self.shared), begun.to_dict() if begun else None, stopped)

    # -- one round ---------------------------------------------------------------------------------------------------

    def round(self, t: int) -> tuple[RoundMetrics, Pass]:
        """Do one round: extra exchanges, sample, broadcast, train, aggregate, evaluate while the server updates.

        Returns its metrics, and a typical client's share of the training.
        """
        self.runner.follow_nodes()
        cohort = self.config.cohort(t)
        resumed, self.begun = self.begun, None
        begun = resumed or BegunRound(RoundMetrics(round=t, clients=len(cohort)))
        metrics = begun.metrics
        if t == 1 and not resumed and any(part.overrides("setup") for part in self.config.parts):
            self.hear_news(metrics)
        self.calls = {}
        times = [("", time.monotonic())]
        for part in self.config.parts:
            if part.overrides("exchange"):
                self.exchanges(part, cohort, begun)
                times.append((f"{part.name} exchange", time.monotonic()))
        typical = self.train(cohort, metrics)
        times.append(("training", time.monotonic()))
        if t == self.config.rounds or is_evaluated(self.config.eval_every, t):
            metrics.count_evaluation(*self.evaluate(t))
            times.append(("evaluation", time.monotonic()))
        if self.config.feature_kl or any(p.overrides("update") or p.overrides("aggregate") for p in self.config.parts):
            self.hear_news(metrics)
            times.append(("server", time.monotonic()))  # for as long as the actors wait for it
        elif any(part.overrides(hook) for part in self.config.parts for hook in ("broadcast", "route")):
            self.hear_news(metrics)
        metrics.count_time(times)
        metrics.timeline = {"round": t, "seconds": metrics.seconds, "spans": spans(self.calls, times[0][1])}
        return metrics, typical

    def complete(self, metrics: RoundMetrics, typical: Pass) -> None:
        """Add to a round what every last one has: the evaluation, and the operations of a client's training."""
        if metrics.accuracy is None:
            began = time.monotonic()
            metrics.count_evaluation(*self.evaluate(metrics.round))
            late = spans({"evaluation": self.calls["evaluation"]}, began - metrics.seconds)
            metrics.count_more_time("evaluation", time.monotonic() - began)
            metrics.timeline["seconds"] = metrics.seconds
            metrics.timeline["spans"] |= late
        self.count_operations(typical, metrics)
        self.count_faults(metrics)

    def count_faults(self, metrics: RoundMetrics) -> None:
        """Count what has failed since the last count."""
        metrics.count_faults(self.counted_faults, self.runner.faults)
        self.counted_faults = replace(self.runner.faults)

    def exchanges(self, part: Part, cohort: list[int], begun: BegunRound) -> None:
        """A part's extra passes at the start of a round, as many as it asks for, with a checkpoint between two."""
        everyone = list(range(self.config.clients))
        metrics, t = begun.metrics, begun.metrics.round
        first = i = begun.passes.get(part.name, 0)  # not 0 where the run was stopped between its passes
        while whom := self.ask(Server.exchange, part.name, t, i):
            if i > first:
                self.save(t - 1, begun)
            since = time.monotonic()
            clients = {"all": everyone, "cohort": cohort}[whom]
            broadcast = replace(self.broadcast(clients, metrics, part.replies_with_model), counted=clients[0])
            if self.config.profile and part.name not in self.profiles:
                broadcast = replace(broadcast, profiled=clients[0])
            with own_code(t):
                groups = in_groups(clients, part.ask("group_size", self.config))
                passes = part.ask("passes")
            work = self.pass_over(WorkerCalls.reply, broadcast, groups, (part.name,))
            answers = self.carry_out(work, metrics)
            self.calls.setdefault(f"{part.name} exchange", []).extend(answers.calls)
            self.send(Server.receive, answers, part.name, t)
            self.note_profile(part.name, answers)
            metrics.count_exchange(part.name, answers.reports)
            self.hear_news(metrics)
            i += 1
            begun.passes[part.name] = i
            if passes:
                spent = round(time.monotonic() - since, 1)
                self.runner.on_event("exchanged", part=part.name, round=t, passes=i, of=passes, seconds=spent)

    def train(self, cohort: list[int], metrics: RoundMetrics) -> Pass:
        """Local training of the cohort, after which the server averages; returns a typical client's share of it."""
        t = metrics.round
        broadcast = self.broadcast(cohort, metrics)
        if self.config.profile and t == min(2, self.config.rounds):  # the first is still warming up
            broadcast = replace(broadcast, profiled=self.data.typical(cohort))
        for part in self.config.parts:
            if part.overrides("route"):
                broadcast = replace(broadcast, route=self.ask(Server.route, part.name, t, cohort))
        work = self.pass_over(WorkerCalls.train, broadcast, in_groups(cohort, self.config.fuse_size))
        client = self.data.typical(cohort)
        typical = self.pass_over(WorkerCalls.train, replace(broadcast, profiled=None, counted=client), [[client]])
        typical.states = {client: self.states[client]} if client in self.states else {}  # as it is before this pass
        answers = self.carry_out(work, metrics)
        self.calls["training"] = answers.calls
        self.weights = self.send(Server.aggregate, answers, t, self.who_trained(cohort, broadcast, answers.reports))
        updating = [part for part in self.config.parts if part.overrides("update")]
        if updating or self.config.feature_kl:
            updated = self.runner.call_server(Server.update, t)
            if any(part.updates_models for part in updating):  # else the models can be evaluated meanwhile
                self.weights = updated
        self.note_profile("training", answers)
        metrics.count_training(answers.reports)
        return typical

    def who_trained(self, cohort: list[int], broadcast: Broadcast, reports: Reports) -> dict[int, Trained]:
        """Who trained each model, with the share of the weight that this is by the sizes of their data."""
        clients: dict[int, list[int]] = {}
        for client in reports.not_skipped():
            clients.setdefault(broadcast.route.get(client, 0), []).append(client)
        if any(part.overrides("weight") for part in self.config.parts):
            return {model: Trained(len(these), None) for model, these in clients.items()}
        whole, labelled = self.weight_of(cohort), self.config.labelled  # who was left out is not in the reports
        return {model: Trained(len(these), self.weight_of(these, labelled) / whole) for model, these in clients.items()}

    def weight_of(self, clients: list[int], labelled: int | None = None) -> float:
        """The weight of clients together, of which so many samples each count."""
        if self.config.weighting != "samples":
            return float(len(clients))
        sizes = self.data.sizes[clients]
        return float((sizes if labelled is None else np.minimum(sizes, labelled)).sum())

    def count_operations(self, typical: Pass, metrics: RoundMetrics) -> None:
        """Count the floating-point operations of a client's training, which is done again for it and then forgotten.

        Counting slows a client down, so it is not done within the time of a round.
        """
        self.version += 1
        again = replace(typical, broadcast=replace(typical.broadcast, version=self.version))
        samples = float(self.data.sizes[self.config.cohort(metrics.round)].mean()) if self.config.local_epochs else None
        metrics.count_operations(self.runner.run(again).reports, samples)

    def evaluate(self, t: int) -> tuple[list[tuple[int, int | None]], int]:
        """Evaluate the global model on the test split, or the clients' own on their shares of it.

        Returns each call's correct predictions and summed loss, and the number of test images.
        """
        sizes = self.data.test.stop - self.data.test.start
        states = self.states if self.config.evaluation == "clients" else None
        groups = in_groups(list(range(len(sizes))), 1)
        answers = self.runner.run(Pass(WorkerCalls.evaluate, self.reading(t), groups, sizes.tolist(), states=states))
        self.calls["evaluation"] = answers.calls
        return answers.first, int(sizes.sum())

    # -- passes ------------------------------------------------------------------------------------------------------

    def broadcast(self, clients: list[int], metrics: RoundMetrics, with_model: bool = True) -> Broadcast:
        """What the clients of a pass are sent; the model does not count where they have no use for it."""
        extras, extra_bytes = None, 0
        if any(part.overrides("broadcast") for part in self.config.parts):
            extras, sent = self.runner.call_server(Server.broadcast, metrics.round, returns=2)
            extra_bytes = self.runner.get(sent)
        model_bytes = self.model_bytes if with_model else 0
        if with_model and any(part.overrides("personal") for part in self.config.parts):
            model_bytes = self.ask(Server.model_bytes, metrics.round)
        metrics.bytes_down += len(clients) * (model_bytes + extra_bytes)
        self.version += 1
        return Broadcast(
            t=metrics.round,
            version=self.version,
            weights=self.weights,
            extras=extras,
            shared=self.shared,
            cohort=len(clients),
            total_weight=self.weight_of(clients),
        )

    def reading(self, t: int) -> Broadcast:
        """The global models and what is shared, for a pass that only looks at them."""
        self.version += 1
        return Broadcast(t, self.version, self.weights, shared=self.shared)

    def pass_over(
        self, method: Callable[..., Any], broadcast: Broadcast, groups: list[list[int]], extra: tuple[Any, ...] = ()
    ) -> Pass:
        """A pass over clients."""
        work = Pass(method, broadcast, groups, [], extra=extra, states=self.states, over_clients=True)
        work.costs, work.pace = self.costs.of_groups(work.kind, groups)
        return work

    def carry_out(self, work: Pass, metrics: RoundMetrics) -> Answers:
        """Carry out a pass over clients; keeps their new states, counts what they sent."""
        answers = self.without_misshapen(work, metrics)
        self.costs.learn(work.kind, answers)
        metrics.count_pass(answers.reports)
        self.note_errors(answers.reports, metrics)
        for reports, states in zip(answers.first, answers.states, strict=True):
            self.states.update(dict.fromkeys(reports.with_state, states))
        self.changed.update(answers.reports.with_state)
        return answers

    def without_misshapen(self, work: Pass, metrics: RoundMetrics) -> Answers:
        """The answers of a pass, which is repeated while a client sends other shapes than most, as the policy says.

        Which shape is the wrong one can only be seen when all have come, and then the actors have added them already.
        """
        answers, failures = self.runner.run(work), 0
        while found := misshapen(answers.reports):
            failures += 1
            decision = self.policy.client_failed(failures)
            for client, wrong in found.items():
                text = f"client {client} failed in round {metrics.round} ({self.config.method}): {wrong}"
                if decision is Decision.STOP:
                    raise ClientFailure(text)
                report = ClientReport(client, errors=(text,), skipped=decision is Decision.SKIP)
                self.note_errors(Reports.of([report]), metrics)
            if decision is Decision.SKIP:
                work, failures = work.without(found), 0
            self.version += 1
            work = replace(work, broadcast=replace(work.broadcast, version=self.version))
            calls = answers.calls
            answers = self.runner.run(work)
            answers.calls = calls + answers.calls
        return answers

    def note_errors(self, reports: Reports, metrics: RoundMetrics) -> None:
        """Record what clients' own code raised: each time in the events, the number in the round's failures."""
        faults, on_event = self.runner.faults, self.runner.on_event
        skipped = set(reports.skipped)
        for client in sorted(skipped | reports.errors.keys()):
            errors = reports.errors.get(client, ())
            for error in errors:
                on_event("client_failed", client=client, round=metrics.round, text=error)
            faults.failures += len(errors)
            faults.retries += max(0, len(errors) - (client in skipped))
            if client in skipped:
                on_event("client_skipped", client=client, round=metrics.round)
                metrics.skipped += 1

    def note_profile(self, name: str, answers: Answers) -> None:
        """Keep the table and the trace that came with an answer, if one did."""
        if answers.reports.profile:
            self.profiles[name] = answers.reports.profile

    # -- the server --------------------------------------------------------------------------------------------------

    def ask(self, method: Callable[..., T], *arguments: Any) -> T:
        """What a method of the server returns."""
        return self.runner.get(self.runner.call_server(method, *arguments))

    def send(self, method: Callable[..., Any], answers: Answers, *arguments: Any) -> Any:
        """Pass sums and uploads on to the server, by reference."""
        return self.runner.call_server(method, *arguments, len(answers.sums), *answers.sums, *answers.uploads)

    def hear_news(self, metrics: RoundMetrics) -> None:
        """Take what the parts reported at the server, and what they share now."""
        reported, self.shared, newly_shared, notices = self.ask(Server.take_news)
        metrics.reported |= reported
        for text in notices:
            self.runner.on_event("notice", round=metrics.round, text=text)
        metrics.bytes_down += round(self.config.clients * newly_shared)  # every client downloads it once

    # -- after the last round ----------------------------------------------------------------------------------------

    def sample_features(self, t: int) -> LabelledFeatures:
        """Features to be drawn: of real and shared images from an actor, generated ones from the server."""
        count = self.config.tsne
        batches = list(range(len(self.data.test)))
        states = self.states if self.config.evaluation == "clients" else {}
        work = Pass(WorkerCalls.sample_features, self.reading(t), [batches], [1.0], extra=(count,), states=states)
        (kinds,) = self.runner.run(work).first
        return kinds | self.ask(Server.sample_features, t, count)

    def measure_privacy(self, history: list[RoundMetrics]) -> list[Figure]:
        """What attacks on the model and on what is shared find, what the server certifies, and the last PSNR."""
        t = len(history)
        certified, means = self.runner.call_server(Server.privacy, t, returns=2)
        work = Pass(WorkerCalls.attack, self.reading(t), [self.trained(t)], [1.0], extra=(means, self.config.cohort(t)))
        (measured,) = self.runner.run(work).first
        similar = [value for metrics in history if (value := metrics.reported.get("psnr")) is not None]
        note = "dB, of shared images to those they were made from, as the papers define it: a similarity"
        psnr = [Figure("psnr", value, note=note) for value in similar[-1:]]
        return [*measured, *self.runner.get(certified), *psnr]

    def compare_images(self, t: int) -> list[Figure]:
        """How the features of shared images are distributed beside those of real ones."""
        work = Pass(WorkerCalls.compare_images, self.reading(t), [self.trained(t)], [1.0])
        (figures,) = self.runner.run(work).first
        return figures

    def trained(self, t: int) -> list[int]:
        """The clients that were active in one of the first t rounds, in order of id."""
        return sorted(set().union(*(self.config.cohort(earlier) for earlier in range(1, t + 1))))
