"""The Ray runner: hands out work to the actors as they ask for it, and again what was lost with one of them."""

import time
from functools import partial

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, OwnerDiedError, RayActorError, RayError, RayTaskError

from raysim.config import RunConfig
from raysim.engine.messages import TRIES, ClientFailure, OutOfMemory, RunFailure, ServerLost
from raysim.engine.ray_runner import lifecycle as crew
from raysim.engine.ray_runner.lifecycle import Crew
from raysim.engine.ray_runner.plan import Plan
from raysim.engine.work_queue import Answers, Call, Pass, Queue

# How long a call may take before its actor counts as hung: so many times what the slowest took, and no less than that.
PATIENCE, LEAST_SECONDS = 10.0, 60.0


class Pool(Crew):
    """The server actor and the client actors of one run.

    A client actor adds up its clients' results over a whole pass and is asked for the sums at the end. If it dies
    before that, all its groups of the pass are run again elsewhere: client work is pure, so nothing changes.
    """

    def __init__(self, plan: Plan, config: RunConfig, run: str = "run", on_event=lambda kind, **details: None):
        super().__init__(plan, config, run, on_event)
        self.pinned, self.client_timeout = config.actor_per_client, config.client_timeout
        self.server, self.asked = None, ""  # the actor, and what it was asked for last
        self.slowest: dict[str, float] = {}  # method -> most seconds a call has taken, per unit of cost

    def put(self, value):
        return ray.put(value)

    def get(self, reference):
        """What the server gives; without it the run has to go back to its last checkpoint."""
        try:
            return self._get(reference, f"the server ({self.asked})")
        except RayError as error:
            raise _server_lost(error) from None

    def _get(self, reference, whom: str):
        """The value; what went wrong in an actor's code comes out with its own traceback, its death as Ray says it."""
        try:
            return ray.get(reference, timeout=self.watchdog)
        except GetTimeoutError:
            raise self._stuck(whom) from None
        except RayTaskError as error:
            if isinstance(error.cause, ClientFailure | OutOfMemory):
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
        self.places.reserve()

    def start(self, federation) -> tuple[list[dict], int]:
        """Start every actor; what each runs on, and the bytes of one model."""
        self.federation = ray.put(federation)
        starts = [self.places.start_server, *(partial(self.places.start_actor, i) for i in self.places.slot)]
        begun = [self._begin(start) for start in starts]
        (self.server, server), *others = [self._begun(start, *pair) for start, pair in zip(starts, begun, strict=True)]
        self.actors = {i: actor for i, (actor, _) in zip(self.places.slot, others, strict=True)}
        clients = [told for _, told in others]
        self.server_gpus, self.gpus = server, [gpus for _, gpus, _ in clients]
        self.fingerprints = [fingerprint for fingerprint, _, _ in clients]
        return self.fingerprints, clients[0][2]

    def _begin(self, start) -> tuple:
        """A new actor, and its first words to come."""
        actor = start(self.federation)
        return actor, actor.call.remote("hello")

    def _begun(self, start, actor, hello) -> tuple:
        """The actor and its first words; another in its place where it failed, as actors do while a cluster starts."""
        for left in reversed(range(TRIES)):
            try:
                return actor, self._get(hello, "the actors to start")
            except RayError as error:
                if not left:
                    raise RunFailure("an actor could not start", str(error)) from None
                self.failures += 1
                self.on_event("start_failed", reason=str(error).strip().splitlines()[0])
                ray.kill(actor)
                actor, hello = self._begin(start)

    def restart_server(self, lost: ServerLost) -> None:
        """A new server in the old one's place; it knows nothing yet."""
        self.failures += 1
        self.on_event("server_lost", reason=str(lost))
        ray.kill(self.server)
        self.follow_nodes(at_once=True)
        if (evicted := self.places.move_server()) is not None:
            self._drop(evicted)
        self.server = self.places.start_server(self.federation)
        try:
            ray.get(self.server.call.remote("hello"), timeout=self.watchdog)
        except RayError as error:
            raise RunFailure("the server actor was lost and cannot be started again", str(error)) from None

    def call_server(self, method: str, *arguments, returns: int = 1):
        """Reference(s) to what the server's method gives."""
        self.asked = method
        return self.server.call.options(name=method, num_returns=returns).remote(method, *arguments)

    def run(self, work: Pass) -> Answers:
        """Pull the pass through the actors, until everything is done and collected."""
        queue = Queue(work.groups, work.costs, len(self.actors))
        answers = Answers()
        while queue:
            done = self._hand_out(work, queue, answers.calls)
            if work.summed:
                done = self._collect(done, queue, answers)
            for calls in done.values():
                for _, first, rest in calls:
                    answers.first.append(first)
                    answers.rest.append(rest)
        return answers

    def stop(self) -> None:
        """Give everything back to the cluster."""
        for actor in [self.server, *self.actors.values()] if self.server else []:
            ray.kill(actor)
        self.places.release()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _hand_out(self, work: Pass, queue: Queue, log: list[Call]) -> dict[int, list]:
        """Empty the queue. Actor -> its finished calls (groups, first value, references to the others).

        When each began and ended is added to the log.
        """
        idle = sorted(self.actors.keys() - self.starting.keys(), reverse=True)
        busy: dict = {}  # first reference -> (actor, groups, other references, when it began)
        done: dict[int, list] = {}
        deaths: dict[int, int] = {}
        pinned = self.pinned and work.states is not None
        while queue or busy:
            while queue and (idle or pinned):
                groups = queue.take(only_one=pinned)
                index = self._own_actor(groups[0][0]) if pinned else idle.pop()
                call = self.actors[index].call.options(name=work.method, num_returns=work.returns)
                references = call.remote(work.method, *work.arguments(groups))
                first, *rest = references if work.returns > 1 else (references,)
                busy[first] = (index, groups, tuple(rest), time.monotonic())
            finished, started = self._wait(work.method, queue, busy)
            idle += started
            if finished is None:
                continue
            index, groups, rest, began = busy.pop(finished)
            try:
                done.setdefault(index, []).append((groups, self._get(finished, "a client actor"), rest))
                log.append(Call(index, began, time.monotonic()))
                rate = (log[-1].ended - began) / queue.cost_of(groups)
                self.slowest[work.method] = max(rate, self.slowest.get(work.method, 0.0))
                idle.append(index)
            except (RayError, OutOfMemory) as error:  # it died, went with its node, has no room, or is out of reach
                log.append(Call(index, began, time.monotonic(), lost=True))
                first = groups[0][0]
                deaths[first] = deaths.get(first, 0) + 1
                if deaths[first] >= TRIES:
                    who = "test batch" if work.states is None else "client"
                    raise RunFailure(f"{who} {first} took its actor down {TRIES} times", str(error)) from None
                # A summing actor takes its finished calls with it; other results are safe with the driver.
                lost = done.pop(index, []) if work.summed else []
                again = [g for call in lost for g in call[0]] + groups
                queue.give_back(again)
                self.retries += sum(map(len, again)) if work.summed else 0  # others are over test batches
                self._replace(index, error, again)
            idle = [i for i in idle if i in self.actors]  # a node may have gone with some
        return {index: calls for index, calls in done.items() if calls}

    def _own_actor(self, client: int) -> int:
        """With an actor for each client: its own, or where that went with its node, one of the others."""
        return client if client in self.actors else sorted(self.actors)[client % len(self.actors)]

    def _wait(self, method: str, queue: Queue, busy: dict) -> tuple[object | None, list[int]]:
        """The next finished call, or actors that have started meanwhile.

        An actor that takes far too long is killed, and its call then fails as lost.
        """
        while True:
            now = time.monotonic()
            left = {r: self._allowed(method, queue, call) - (now - call[3]) for r, call in busy.items()}
            for reference in [r for r, seconds in left.items() if seconds <= 0]:
                index, groups, rest, began = busy[reference]
                clients = [k for group in groups for k in group]
                self.on_event("actor_hung", actor=index, clients=clients, seconds=round(now - began, 1))
                if index in self.actors:
                    ray.kill(self.actors[index])
                busy[reference] = (index, groups, rest, now)  # its end will be noticed soon
                left[reference] = LEAST_SECONDS
            seconds = min(left.values(), default=self.watchdog)
            if self.starting:  # on a node that has gone it would never come
                seconds = min(seconds, crew.NODE_SECONDS)
            hellos = {hello: index for index, (hello, _, _) in self.starting.items()}
            found, _ = ray.wait([*busy, *hellos], num_returns=1, timeout=max(seconds, 0))
            if found and found[0] in busy:
                return found[0], []
            if found:
                index = hellos[found[0]]
                if self._has_started(index):
                    for reference, (i, groups, rest, _) in list(busy.items()):
                        if i == index:  # only now its work begins
                            busy[reference] = (i, groups, rest, time.monotonic())
                    return None, [index]
            elif self.starting:
                self._check_starting()

    def _allowed(self, method: str, queue: Queue, call: tuple) -> float:
        """Seconds a call may take."""
        index, groups, _, _ = call
        if index in self.starting:
            return self.watchdog
        if self.client_timeout:
            return self.client_timeout * sum(map(len, groups))
        if method not in self.slowest:
            return self.watchdog
        return LEAST_SECONDS + PATIENCE * self.slowest[method] * queue.cost_of(groups)

    def _collect(self, done: dict[int, list], queue: Queue, answers: Answers) -> dict[int, list]:
        """Ask every actor that worked for its sums; what a dead one held goes back into the queue."""
        asked = {
            i: self.actors[i].call.options(name="collect", num_returns=2).remote("collect")
            for i in done
            if i in self.actors
        }
        kept = {}
        for index, calls in done.items():
            groups = [g for call in calls for g in call[0]]
            expected = sum(len(g) for g in groups)
            if index not in asked:  # its node has gone since
                queue.give_back(groups)
                self.retries += expected
                continue
            count, sums = asked[index]
            try:
                summed = self._get(count, f"client actor {index} (collect)")
            except RayError as error:
                queue.give_back(groups)
                self.retries += expected
                self._replace(index, error, groups)
                continue
            if summed != expected:
                raise RunFailure(f"client actor {index} summed {summed} clients where {expected} were expected", "")
            answers.sums.append(sums)
            kept[index] = calls
        return kept


def _server_lost(error: RayError) -> ServerLost:
    return ServerLost(f"the server actor was lost: {str(error).strip().splitlines()[0]}", str(error))
