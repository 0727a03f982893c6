"""The round loop. One loop for every method, with or without Ray; it holds references, not data."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from raysim.config import RunConfig
from raysim.data.federated import Federation
from raysim.engine.messages import TRIES, Broadcast, ClientFailure, ClientReport, ServerLost
from raysim.engine.answers import all_reports, counted, evaluated, misshapen, training_loss
from raysim.engine.work_queue import Answers, Call, Pass, in_groups, spans
from raysim.methods.base import overrides
from raysim.privacy.figures import Figure
from raysim.rng import stream
from raysim.storage.checkpoints import Checkpoint
from raysim.storage.run_directory import digest


@dataclass
class Result:
    """What a run ends with."""

    models: list[dict[str, np.ndarray]]
    model_sha256: str
    server_state_sha256: str
    shared: dict[str, pa.Table]  # part -> the dataset it shared last, in the store's memory
    history: list[dict] = field(default_factory=list)
    features: dict[str, tuple] = field(default_factory=dict)  # kind -> features and labels, if --tsne asks
    privacy: list[Figure] = field(default_factory=list)  # if --privacy asks


class Simulation:
    """Runs a configuration on a runner (engine/ray_runner/runner.py or engine/in_process.py) that has been started."""

    def __init__(self, config: RunConfig, federation: Federation, runner, model_bytes: int, saver=None):
        self.config, self.federation, self.runner, self.saver = config, federation, runner, saver
        self.model_bytes = model_bytes
        self.version = 0
        self.failures, self.retries = runner.failures, runner.retries  # that a line has told of
        self.calls: dict[str, list[Call]] = {}  # of this round, by phase
        self.timeline: dict = {}  # the last round's: who worked when
        self.profiles: dict[str, tuple[str, str]] = {}  # training, or a part's exchange -> table, Chrome trace
        self.restore(None)

    def run(self, on_round: Callable[[dict], None] = lambda line: None, history: list[dict] | None = None) -> Result:
        """All rounds after those of `history`; `on_round` is given each line of metrics as it comes.

        Where the server is lost, or something only it or a lost node had, the rounds since the last checkpoint are
        done again: `on_round` then sees a round a second time.
        """
        history = history or []
        losses = 0
        while True:
            reached = len(history)
            try:
                self.rounds(history, on_round)
                return self.finish(history)
            except ServerLost as lost:
                losses = 1 if len(history) > reached else losses + 1
                if losses >= TRIES:
                    raise
                began = time.monotonic()
                self.runner.restart_server(lost)
                checkpoint = self.saver.load() if self.saver else None
                self.restore(checkpoint)
                kept = checkpoint.round if checkpoint else 0
                del history[kept:]
                self.runner.on_event("server_back", seconds=round(time.monotonic() - began, 1), round=kept)

    def rounds(self, history: list[dict], on_round: Callable[[dict], None]) -> None:
        """One round after another, each added to the history, told, and kept in a checkpoint."""
        while len(history) < self.config.rounds:
            line = self.round(len(history) + 1)
            line["failures"], self.failures = self.runner.failures - self.failures, self.runner.failures
            line["retries"], self.retries = self.runner.retries - self.retries, self.runner.retries
            history.append(line)
            on_round(line)
            self.save(line["round"])
        if self.saver:
            self.saver.wait()

    def finish(self, history: list[dict]) -> Result:
        """What the run ends with."""
        features = self.sample_features() if self.config.tsne else {}
        privacy = self.measure_privacy() if self.config.privacy else []
        shared = {name: self.runner.get(reference) for name, reference in self.shared.items()}
        (models,) = self.runner.run(Pass("export", self.reading(self.config.rounds), [[0]], [1.0])).first
        state = self.runner.get(self.runner.call_server("export"))
        return Result(models, digest(models), digest([state]), shared, history, features, privacy)

    def restore(self, checkpoint: Checkpoint | None) -> None:
        """Be as after the checkpoint's round, or as before the first."""
        self.states: dict[int, object] = {}  # client -> reference to the states one pass returned
        self.changed: set[int] = set()  # clients whose state no checkpoint has
        self.shared: dict[str, object] = {}  # part -> reference to the dataset it shares
        self.begun = checkpoint.begun if checkpoint else None  # the next round's line and passes, of its exchanges
        if checkpoint is None:
            (initial,) = self.runner.run(Pass("initial", None, [[0]], [1.0])).first
            self.weights = self.runner.call_server("begin", initial)
            return
        for batch in checkpoint.states:
            self.states |= dict.fromkeys((client for client, _ in batch), self.runner.put(batch))
        self.weights = self.runner.call_server("restore", checkpoint.server, checkpoint.shared)
        _, self.shared, _ = self.runner.get(self.runner.call_server("told"))

    def save(self, t: int, begun: dict | None = None) -> None:
        """A checkpoint, written while the next round runs; or, of a round that has begun, while its next pass does."""
        if self.saver and (begun or t % self.config.checkpoint_every == 0 or t == self.config.rounds):
            snapshot = self.runner.call_server("snapshot", returns=2)
            states = {client: self.states[client] for client in sorted(self.changed)}
            self.changed = set()
            self.saver.save(t, snapshot, states, dict(self.shared), begun)

    def round(self, t: int) -> dict:
        """Extra exchanges, sample, broadcast, train, aggregate, evaluate."""
        self.runner.follow_nodes()
        cohort = self.sample(t)
        line = {"round": t, "accuracy": None, "loss": None, "clients": len(cohort), "bytes_up": 0, "bytes_down": 0}
        line["gflops"] = {}  # per client, by what it does; training only in the last round
        self.calls = {}
        begun, self.begun = self.begun or {"line": line, "passes": {}}, None
        line = begun["line"]
        times = [("", time.monotonic())]
        for part in self.config.parts:
            if overrides(part, "exchange"):
                self.exchanges(part, t, cohort, begun)
                times.append((f"{part.name} exchange", time.monotonic()))
        reports = self.train(t, cohort, line)
        line |= training_loss(reports)
        times.append(("training", time.monotonic()))
        if t == self.config.rounds or (self.config.eval_every and t % self.config.eval_every == 0):
            line |= self.evaluate(t)
            times.append(("evaluation", time.monotonic()))
        line["phases"] = {name: round(end - start, 4) for (_, start), (name, end) in pairwise(times)}
        line["seconds"] = round(times[-1][1] - times[0][1], 4)
        self.timeline = {"round": t, "seconds": line["seconds"], "spans": spans(self.calls, times[0][1])}
        return line

    def sample(self, t: int) -> list[int]:
        """The round's active clients, in order of id."""
        drawn = stream(self.config.seed, "cohort", t).choice(self.config.clients, self.config.active, replace=False)
        return sorted(drawn.tolist())

    def exchanges(self, part, t: int, cohort: list[int], begun: dict) -> None:
        """A part's extra passes at the start of a round, as many as it asks for; between two of them a checkpoint."""
        everyone = list(range(self.config.clients))
        line = begun["line"]
        first = i = begun["passes"].get(part.name, 0)  # not 0 where the run was stopped between its passes
        while whom := self.runner.get(self.runner.call_server("exchange", part.name, t, i)):
            if i > first:
                self.save(t - 1, copy.deepcopy(begun))
            clients = {"all": everyone, "cohort": cohort}[whom]
            broadcast = replace(self.broadcast(t, clients, line, part.replies_with_model), counted=clients[0])
            if self.config.profile and part.name not in self.profiles:
                broadcast = replace(broadcast, profiled=clients[0])
            answers = self.pass_over("reply", broadcast, in_groups(clients, part.group), (part.name,), line)
            self.calls.setdefault(f"{part.name} exchange", []).extend(answers.calls)
            self.send("receive", answers, part.name, t)
            self.note_profile(part.name, answers)
            line["gflops"][part.name] = line["gflops"].get(part.name, 0.0) + counted(all_reports(answers))[0]
            self.hear(line)
            i += 1
            begun["passes"][part.name] = i

    def train(self, t: int, cohort: list[int], line: dict) -> list[ClientReport]:
        """Local training of the cohort; the server averages."""
        broadcast = self.broadcast(t, cohort, line)
        if t == self.config.rounds:  # once: counting slows that client down
            broadcast = replace(broadcast, counted=self.federation.typical(cohort))
        if self.config.profile and t == min(2, self.config.rounds):  # the first is still warming up
            broadcast = replace(broadcast, profiled=self.federation.typical(cohort))
        for part in self.config.parts:
            if overrides(part, "route"):
                route = self.runner.get(self.runner.call_server("route", part.name, t, cohort))
                broadcast = replace(broadcast, route=route)
        answers = self.pass_over("train", broadcast, in_groups(cohort, self.config.fuse), (), line)
        self.calls["training"] = answers.calls
        self.weights = self.send("aggregate", answers, t)
        self.note_profile("training", answers)
        reports = all_reports(answers)
        if broadcast.counted is not None:
            gflops, samples = counted(reports)
            scale = self.federation.sizes[cohort].mean() / samples if self.config.local_epochs else 1.0
            line["gflops"]["training"] = gflops * float(scale)
        if any(overrides(part, "update") for part in self.config.parts):
            self.hear(line)
        return reports

    def note_errors(self, report: ClientReport, line: dict) -> None:
        """What a client's own code raised: every time in the events, the number in the round's failures."""
        for error in report.errors:
            self.runner.on_event("client_failed", client=report.client, round=line["round"], text=error)
        self.runner.failures += len(report.errors)
        self.runner.retries += max(0, len(report.errors) - report.skipped)
        if report.skipped:
            self.runner.on_event("client_skipped", client=report.client, round=line["round"])
            line["skipped"] = line.get("skipped", 0) + 1

    def note_profile(self, name: str, answers: Answers) -> None:
        """Keep the table and the trace that came with an answer, if one did."""
        for profile in (report.profile for reports in answers.first for report in reports if report.profile):
            self.profiles[name] = profile

    def broadcast(self, t: int, clients: list[int], line: dict, with_model: bool = True) -> Broadcast:
        """What this pass's clients are sent; the model does not count where they have no use for it."""
        extras, extra_bytes = None, 0
        if any(overrides(part, "broadcast") for part in self.config.parts):
            extras, sent = self.runner.call_server("broadcast", t, returns=2)
            extra_bytes = self.runner.get(sent)
        line["bytes_down"] += len(clients) * (self.model_bytes * with_model + extra_bytes)
        by_samples = self.config.weighting == "samples"
        total = float(self.federation.sizes[clients].sum() if by_samples else len(clients))
        self.version += 1
        return Broadcast(t, self.version, self.weights, extras, self.shared, len(clients), total)

    def reading(self, t: int) -> Broadcast:
        """The global models and what is shared, for a pass that only looks at them."""
        self.version += 1
        return Broadcast(t, self.version, self.weights, shared=self.shared)

    def hear(self, line: dict) -> None:
        """What the parts said at the server, and what they share now."""
        metrics, self.shared, newly_shared = self.runner.get(self.runner.call_server("told"))
        line |= metrics
        line["bytes_down"] += round(self.config.clients * newly_shared)  # every client downloads it once

    def pass_over(self, method: str, broadcast: Broadcast, groups: list[list[int]], extra: tuple, line: dict):
        """A pass over clients: keeps their new states, counts what they sent."""
        costs = [float(sum(self.federation.sizes[k] for k in group)) for group in groups]
        work = Pass(method, broadcast, groups, costs, extra, self.states, summed=True, returns=3)
        answers = self.without_misshapen(work, self.runner.run(work), line)
        for reports, (_, states) in zip(answers.first, answers.rest, strict=True):
            line["bytes_up"] += sum(report.bytes_up for report in reports)
            for report in reports:
                self.note_errors(report, line)
                if report.has_state:
                    self.states[report.client] = states
                    self.changed.add(report.client)
        return answers

    def without_misshapen(self, work: Pass, answers: Answers, line: dict) -> Answers:
        """Its answers; the pass is done again while a client sends other shapes than most, as --on-client-error says.

        Which shape is the wrong one can only be told when all have come, and then the actors have added them already.
        """
        policy, tries = self.config.on_client_error, 1
        while found := misshapen(all_reports(answers)):
            over = policy == "stop" or tries > self.config.client_retries
            for client, wrong in found.items():
                text = f"client {client} failed in round {line['round']} ({self.config.method}): {wrong}"
                if over and policy != "skip":
                    raise ClientFailure(text, "")
                self.note_errors(ClientReport(client, errors=(text,), skipped=over), line)
            if over:
                work = work.without(found)
            tries = 1 if over else tries + 1
            self.version += 1
            work = replace(work, broadcast=replace(work.broadcast, version=self.version))
            calls = answers.calls
            answers = self.runner.run(work)
            answers.calls = calls + answers.calls
        return answers

    def send(self, method: str, answers: Answers, *arguments):
        """Pass sums and uploads on to the server, by reference."""
        uploads = [uploads for uploads, _ in answers.rest]
        return self.runner.call_server(method, *arguments, len(answers.sums), *answers.sums, *uploads)

    def evaluate(self, t: int) -> dict:
        """The global model on the whole test split, or the clients' own on their shares: counted exactly."""
        sizes = self.federation.test.stop - self.federation.test.start
        states = self.states if self.config.evaluation == "clients" else None
        work = Pass("evaluate", self.reading(t), in_groups(list(range(len(sizes))), 1), sizes.tolist(), states=states)
        answers = self.runner.run(work)
        self.calls["evaluation"] = answers.calls
        return evaluated(answers.first, int(sizes.sum()))

    def sample_features(self) -> dict[str, tuple]:
        """Features to be drawn: of real and shared images from an actor, generated ones from the server."""
        t, count = self.config.rounds, self.config.tsne
        batches = list(range(len(self.federation.test.chunk)))
        states = self.states if self.config.evaluation == "clients" else {}
        (kinds,) = self.runner.run(Pass("sample_features", self.reading(t), [batches], [1.0], (count,), states)).first
        return kinds | self.runner.get(self.runner.call_server("sample_features", t, count))

    def measure_privacy(self) -> list[Figure]:
        """What an actor finds by attacking the model and what is shared, and what the server can certify."""
        t = self.config.rounds
        certified, means = self.runner.call_server("privacy", t, returns=2)
        cohorts = [self.sample(earlier) for earlier in range(1, t + 1)]
        trained = sorted(set().union(*cohorts))
        work = Pass("attack", self.reading(t), [trained], [1.0], (means, trained, cohorts[-1]))
        (measured,) = self.runner.run(work).first
        return [*measured, *self.runner.get(certified)]
