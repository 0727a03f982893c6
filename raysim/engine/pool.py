"""The Ray runner: starts the plan's actors, hands out work as they ask for it, and replaces those that die."""

import importlib
import time

import ray
from ray.exceptions import ObjectLostError, OwnerDiedError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raysim.engine.messages import TRIES, ClientFailure, RunFailure, ServerLost
from raysim.engine.plan import Plan
from raysim.engine.work import Answers, Pass, Queue
from raysim.errors import PlanError

PLACEMENT_SECONDS = 20
# How long a call may take before its actor counts as hung: so many times what the slowest took, and no less than that.
PATIENCE, LEAST_SECONDS, FIRST_SECONDS = 10.0, 60.0, 3600.0


class _Host:
    """Holds a Worker or a Server. Imports it in the actor's own process: the driver needs no torch."""

    def __init__(self, module: str, kind: str, federation):
        self.held = getattr(importlib.import_module(module), kind)(federation)

    def call(self, method: str, *arguments):
        return getattr(self.held, method)(*arguments)


@ray.remote(num_cpus=0)
class ServerActor(_Host):
    """The server of a run."""


@ray.remote(num_cpus=0)
class ClientActor(_Host):
    """Hosts whichever clients it is given."""


class Pool:
    """The server actor and the client actors of one run.

    A client actor adds up its clients' results over a whole pass and is asked for the sums at the end. If it dies
    before that, all its groups of the pass are run again elsewhere: client work is pure, so nothing changes.
    """

    def __init__(
        self, plan: Plan, pinned: bool, client_timeout: float | None = None, on_event=lambda kind, **details: None
    ):
        self.plan, self.pinned, self.client_timeout, self.on_event = plan, pinned, client_timeout, on_event
        self.starting: dict[int, object] = {}  # replaced actor -> its hello, until that comes
        self.slowest: dict[str, float] = {}  # method -> most seconds a call has taken, per unit of cost
        self.placement, self.server, self.actors = None, None, []
        self.failures = 0  # actors lost so far

    def put(self, value):
        return ray.put(value)

    def get(self, reference):
        """What the server gives; without it the run has to go back to its last checkpoint."""
        try:
            return self._get(reference)
        except RayError as error:
            raise _server_lost(error) from None

    def _get(self, reference):
        """The value; what went wrong in an actor's code comes out with its own traceback, its death as Ray says it."""
        try:
            return ray.get(reference)
        except RayTaskError as error:
            if isinstance(error.cause, ClientFailure):
                raise error.cause from None
            if isinstance(error.cause, RayError):  # what the task needed is gone
                raise _server_lost(error.cause) from None
            raise RunFailure(f"the run failed: {error.cause!r}", str(error)) from None
        except (ObjectLostError, OwnerDiedError) as error:
            raise _server_lost(error) from None
        except RayActorError as error:
            if self.server is not None and error.actor_id == self.server._actor_id.hex():
                raise _server_lost(error) from None
            raise

    def reserve(self) -> None:
        """Take the plan's place in the cluster, or say that there is none."""
        selector = [{"ray.io/node-id": slot.node} for slot in self.plan.slots]
        self.placement = placement_group(self.plan.bundles(), bundle_label_selector=selector)
        if not self.placement.wait(PLACEMENT_SECONDS):
            free = {k: round(v, 2) for k, v in sorted(ray.available_resources().items()) if k in ("CPU", "GPU")}
            raise PlanError(
                f"no room for {self.plan.actors} client actors within {PLACEMENT_SECONDS} s: asked for "
                f"{self.plan.total()}, free {free or 'nothing'}; wait for other jobs, or use fewer --actors"
            )

    def start(self, federation) -> tuple[list[dict], int]:
        """Start every actor; what each runs on, and the bytes of one model."""
        self.federation = ray.put(federation)
        self.server = self._start_server()
        self.actors = [self._start_actor(i) for i in range(self.plan.actors)]
        hellos = [actor.call.remote("hello") for actor in [self.server, *self.actors]]
        try:
            server, *clients = self._get(hellos)
        except RayActorError as error:
            raise RunFailure("an actor could not start", str(error)) from None
        self.server_gpus, self.gpus = server, [gpus for _, gpus, _ in clients]
        return [fingerprint for fingerprint, _, _ in clients], clients[0][2]

    def restart_server(self, lost: ServerLost) -> None:
        """A new server in the old one's place; it knows nothing yet."""
        self.failures += 1
        self.on_event("server_lost", reason=str(lost))
        ray.kill(self.server)
        self.server = self._start_server()
        try:
            ray.get(self.server.call.remote("hello"))
        except RayError as error:
            raise RunFailure("the server actor was lost and cannot be started again", str(error)) from None

    def call_server(self, method: str, *arguments, returns: int = 1):
        """Reference(s) to what the server's method gives."""
        return self.server.call.options(name=method, num_returns=returns).remote(method, *arguments)

    def run(self, work: Pass) -> Answers:
        """Pull the pass through the actors, until everything is done and collected."""
        queue = Queue(work.groups, work.costs, self.plan.actors)
        answers = Answers()
        while queue:
            done = self._hand_out(work, queue)
            if work.summed:
                done = self._collect(done, queue, answers)
            for calls in done.values():
                for _, first, rest in calls:
                    answers.first.append(first)
                    answers.rest.append(rest)
        return answers

    def stop(self) -> None:
        """Give everything back to the cluster."""
        for actor in [self.server, *self.actors] if self.server else []:
            ray.kill(actor)
        if self.placement:
            remove_placement_group(self.placement)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _hand_out(self, work: Pass, queue: Queue) -> dict[int, list]:
        """Empty the queue. Actor -> its finished calls (groups, first value, references to the others)."""
        idle = list(range(self.plan.actors))[::-1]
        busy: dict = {}  # first reference -> (actor, groups, other references, when it began)
        done: dict[int, list] = {i: [] for i in idle}
        deaths: dict[int, int] = {}
        pinned = self.pinned and work.states is not None
        while queue or busy:
            while queue and (idle or pinned):
                groups = queue.take(only_one=pinned)
                index = groups[0][0] if pinned else idle.pop()
                call = self.actors[index].call.options(name=work.method, num_returns=work.returns)
                references = call.remote(work.method, *work.arguments(groups))
                first, *rest = references if work.returns > 1 else (references,)
                busy[first] = (index, groups, tuple(rest), time.monotonic())
            finished = self._wait(work.method, queue, busy)
            index, groups, rest, began = busy.pop(finished)
            try:
                done[index].append((groups, self._get(finished), rest))
                rate = (time.monotonic() - began) / queue.cost_of(groups)
                self.slowest[work.method] = max(rate, self.slowest.get(work.method, 0.0))
            except RayActorError as error:
                first = groups[0][0]
                deaths[first] = deaths.get(first, 0) + 1
                if deaths[first] >= TRIES:
                    who = "test batch" if work.states is None else "client"
                    raise RunFailure(f"{who} {first} took its actor down {TRIES} times", str(error)) from None
                self._replace(index, error)
                # A summing actor takes its finished calls with it; other results are safe with the driver.
                lost = done.pop(index) if work.summed else []
                done.setdefault(index, [])
                queue.give_back([g for call in lost for g in call[0]] + groups)
            if not pinned:
                idle.append(index)
        return {index: calls for index, calls in done.items() if calls}

    def _wait(self, method: str, queue: Queue, busy: dict):
        """The next finished call. An actor that takes far too long is killed, and its call then fails as lost."""
        while True:
            now = time.monotonic()
            left = {r: self._allowed(method, queue, call) - (now - call[3]) for r, call in busy.items()}
            for reference in [r for r, seconds in left.items() if seconds <= 0]:
                index, groups, rest, began = busy[reference]
                clients = [k for group in groups for k in group]
                self.on_event("actor_hung", actor=index, clients=clients, seconds=round(now - began, 1))
                ray.kill(self.actors[index])
                busy[reference] = (index, groups, rest, now)  # its end will be noticed soon
                left[reference] = LEAST_SECONDS
            started = {hello: i for i, hello in self.starting.items()}
            found, _ = ray.wait([*busy, *started], num_returns=1, timeout=min(left.values()))
            ready = found[0] if found else None
            if ready in busy:
                return ready
            if ready in started:  # only now its work begins
                index = started[ready]
                del self.starting[index]
                for reference, (i, groups, rest, _) in list(busy.items()):
                    if i == index:
                        busy[reference] = (i, groups, rest, time.monotonic())

    def _allowed(self, method: str, queue: Queue, call: tuple) -> float:
        """Seconds a call may take."""
        index, groups, _, _ = call
        if index in self.starting:
            return FIRST_SECONDS
        if self.client_timeout:
            return self.client_timeout * sum(map(len, groups))
        if method not in self.slowest:
            return FIRST_SECONDS
        return LEAST_SECONDS + PATIENCE * self.slowest[method] * queue.cost_of(groups)

    def _collect(self, done: dict[int, list], queue: Queue, answers: Answers) -> dict[int, list]:
        """Ask every actor that worked for its sums; what a dead one held goes back into the queue."""
        asked = {i: self.actors[i].call.options(name="collect", num_returns=2).remote("collect") for i in done}
        kept = {}
        for index, (count, sums) in asked.items():
            groups = [g for call in done[index] for g in call[0]]
            try:
                summed = self._get(count)
            except RayActorError as error:
                self._replace(index, error)
                queue.give_back(groups)
                continue
            expected = sum(len(g) for g in groups)
            if summed != expected:
                raise RunFailure(f"client actor {index} summed {summed} clients where {expected} were expected", "")
            answers.sums.append(sums)
            kept[index] = done[index]
        return kept

    def _slot(self, slot: int) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(self.placement, placement_group_bundle_index=slot)

    def _start_server(self):
        options = {"num_gpus": self.plan.server_gpu, "scheduling_strategy": self._slot(0)}
        return ServerActor.options(**options).remote("raysim.engine.server", "Server", self.federation)

    def _start_actor(self, index: int):
        return ClientActor.options(
            num_cpus=self.plan.cpus_per_actor,
            num_gpus=self.plan.gpus_per_actor,
            scheduling_strategy=self._slot(self.plan.actor_slots[index]),
        ).remote("raysim.engine.worker", "Worker", self.federation)

    def _replace(self, index: int, error: RayActorError) -> None:
        """A new actor in the dead one's place. The old is killed in case it was only out of reach."""
        ray.kill(self.actors[index])
        self.failures += 1
        reason = str(error).strip().splitlines()[0]
        self.on_event("actor_lost", actor=index, reason=reason)
        self.actors[index] = self._start_actor(index)
        self.starting[index] = self.actors[index].call.remote("hello")


def _server_lost(error: RayError) -> ServerLost:
    return ServerLost(f"the server actor was lost: {str(error).strip().splitlines()[0]}", str(error))
