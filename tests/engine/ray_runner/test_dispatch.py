"""Dispatch alone, on a Ray that only pretends: calls end when their time has come, by a clock of its own."""

import itertools

import pytest
from ray.exceptions import RayActorError

from raysim.engine.failures import FailurePolicy, FaultCount, RunFailure
from raysim.engine.messages import Broadcast
from raysim.engine.ray_runner import dispatch, lifecycle
from raysim.engine.ray_runner.dispatch import CallRates, Collected, Deadlines, Dispatch
from raysim.engine.runner import WorkerCalls
from raysim.engine.work_queue import Pace, Pass

BROADCAST = Broadcast(1, 1, None)


class FakeRay:
    """As much of Ray as a dispatch uses. A call takes as many seconds as `seconds` says; some never end."""

    def __init__(self, monkeypatch, hangs=(), seconds=lambda actor, clients: len(clients)):
        self.seconds = seconds
        self.now, self.waits, self.lost = 0.0, 0, set()
        self.ends: dict[int, float] = {}  # by reference
        self.actor_of: dict[int, int] = {}
        self.numbers, self.hangs = itertools.count(), set(hangs)
        monkeypatch.setattr(dispatch, "ray", self)
        monkeypatch.setattr(dispatch.time, "monotonic", lambda: self.now)

    def wait(self, references, num_returns, timeout):
        self.waits += 1
        ready = [r for r in references if self.ends[r] <= self.now]
        if not ready:
            self.now = min(min(self.ends[r] for r in references), self.now + timeout)
            ready = [r for r in references if self.ends[r] <= self.now]
        found = ready[:num_returns]
        return found, [r for r in references if r not in found]

    def kill(self, actor):
        for reference, index in self.actor_of.items():
            if index == actor.index and self.ends[reference] > self.now:
                self.ends[reference] = self.now
                self.lost.add(reference)

    def call(self, index, groups):
        reference = next(self.numbers)
        self.actor_of[reference] = index
        clients = [k for group in groups for k in group]
        hung = self.hangs & set(clients)
        self.hangs -= hung  # only the first time
        self.ends[reference] = float("inf") if hung else self.now + self.seconds(index, clients)
        return reference


class FakeActor:
    def __init__(self, index):
        self.index = index


class FakeClients:
    """Client actors that are all up; one that is lost is there again at once."""

    def __init__(self, fake, count, **limits):
        self.policy = FailurePolicy("stop", 0, limits.get("client_timeout"), limits.get("watchdog", 600.0))
        self.faults, self.starting, self.events = FaultCount(), {}, []
        self.fake, self.actors = fake, {i: FakeActor(i) for i in range(count)}

    def __len__(self):
        return len(self.actors)

    def ready(self):
        return sorted(self.actors)

    def call(self, index, method, returns, broadcast, groups, states):
        return self.fake.call(index, groups)

    def on_event(self, kind, /, **details):
        self.events.append((kind, details))

    def replace(self, index, error, groups):
        self.events.append(("replaced", {"actor": index}))


def carried_out(fake, clients, count, rates=None, pace=None):
    """A pass over so many test batches, one in a group; a killed actor's call fails as Ray's would."""
    groups = [[i] for i in range(count)]
    work = Pass(WorkerCalls.evaluate, BROADCAST, groups, [1.0] * count, pace=pace or Pace())

    def get(reference, whom):
        if isinstance(reference, list):
            return [get(one, whom) for one in reference]
        if reference in fake.lost:
            raise RayActorError()
        return reference

    one = Dispatch(work, clients, rates or CallRates(), pinned=False, get=get)
    one.computed = 0
    allowed = one.allowed

    def counted(call):
        one.computed += 1
        return allowed(call)

    one.allowed = counted
    return one, one.run()


def test_all_groups_are_done_once(monkeypatch):
    fake = FakeRay(monkeypatch)
    one, answers = carried_out(fake, FakeClients(fake, 3), 50)
    assert len(answers.first) == len(answers.calls)
    assert not one.busy
    assert not any(call.lost for call in answers.calls)


@pytest.mark.parametrize("actors", [10, 1000])
def test_the_work_per_call_does_not_grow_with_the_actors(monkeypatch, actors):
    """Deadlines are computed at hand-out, and once more when the first call has shown how long calls take."""
    fake = FakeRay(monkeypatch)
    one, answers = carried_out(fake, FakeClients(fake, actors), 4 * actors)
    calls = len(answers.calls)
    assert calls >= actors
    assert one.computed <= calls + actors
    assert fake.waits <= 2 * 10  # equal calls return together, and are dealt with in one go


def test_a_hung_call_is_killed_at_its_deadline_and_done_again(monkeypatch):
    fake = FakeRay(monkeypatch, hangs=[7])
    clients = FakeClients(fake, 2, client_timeout=30.0)
    _, answers = carried_out(fake, clients, 20)
    (hung,) = [details for kind, details in clients.events if kind == "actor_hung"]
    assert 7 in hung["clients"]
    assert hung["seconds"] == 30.0 * len(hung["clients"])
    assert ("replaced", {"actor": hung["actor"]}) in clients.events
    assert sum(call.lost for call in answers.calls) == 1


def test_a_deadline_moves_when_a_slower_call_has_returned(monkeypatch):
    """At hand-out a call of one unit may take 60 + 10 · 0.1 s; then one returns that took 90 s per unit."""
    fake = FakeRay(monkeypatch)
    clients = FakeClients(fake, 1)
    rates = CallRates({"evaluate": 0.1})
    one = Dispatch(
        Pass(WorkerCalls.evaluate, BROADCAST, [[0]], [1.0]), clients, rates, pinned=False, get=lambda r, whom: r
    )
    one.hand_out(0, one.queue.take(1.0))
    (reference,) = one.busy
    assert one.kill_hung() == pytest.approx(61.0)
    rates.note("evaluate", 90.0, 1.0)
    fake.now = 62.0
    assert one.kill_hung() == pytest.approx(min(600.0, 960.0 - 62.0))
    assert clients.events == []
    fake.now = 960.5
    one.kill_hung()
    assert [kind for kind, _ in clients.events] == ["actor_hung"]
    assert reference in one.busy


def test_deadlines_come_soonest_first_and_forget_what_has_returned():
    deadlines = Deadlines()
    for at, reference in ((5.0, "a"), (2.0, "b"), (9.0, "c")):
        deadlines.add(at, reference)
    assert deadlines.next({"a", "b", "c"}).reference == "b"
    assert deadlines.next({"a", "c"}).reference == "a"
    assert deadlines.next({"c"}).at == 9.0
    assert deadlines.next(set()) is None


def test_calls_that_are_too_short_for_so_many_actors_become_one_each(monkeypatch):
    """Once it is known that a client takes no time, the driver hands out whole shares."""
    fake = FakeRay(monkeypatch)
    clients = FakeClients(fake, 100)
    first = len(carried_out(fake, clients, 1_000)[1].calls)
    then = len(carried_out(fake, clients, 1_000, pace=Pace(seconds=1e-6))[1].calls)
    assert first > 300
    assert then == 100


def test_a_slow_actor_is_given_less_and_leaves_the_last_groups_to_the_others(monkeypatch):
    speed = {0: 1.4, 1: 1.4, 2: 0.2}
    fake = FakeRay(monkeypatch, seconds=lambda actor, clients: 0.1 * len(clients) / speed[actor])
    clients = FakeClients(fake, 3)
    for count in (60, 12, 2):
        _, answers = carried_out(fake, clients, count, pace=Pace(speed, 0.1))
        ended = max(call.ended for call in answers.calls) - min(call.began for call in answers.calls)
        assert ended < 1.25 * max(0.1 * count / 3, 0.1 / 1.4)
    assert {call.actor for call in answers.calls} == {0, 1}
    fake.now += 1.0
    _, answers = carried_out(fake, FakeClients(fake, 1), 3, pace=Pace({0: 0.01}, 0.1))  # there is no other
    assert len(answers.first) == len(answers.calls)


def test_an_idle_actor_that_is_gone_is_given_nothing(monkeypatch):
    """A slow one has left the last group to the others; it goes with its node, and then their work comes back."""
    fake = FakeRay(monkeypatch)
    clients = FakeClients(fake, 2)
    work = Pass(WorkerCalls.evaluate, BROADCAST, [[0], [1]], [1.0, 1.0], pace=Pace({0: 1.9, 1: 0.1}, 1.0))
    one = Dispatch(work, clients, CallRates(), pinned=False, get=lambda r, whom: r)
    one.idle = [1, 0]
    one.hand_out_to_idle()
    assert (len(one.busy), one.idle) == (1, [1])
    del clients.actors[1]
    one.hand_out_to_idle()
    assert (len(one.busy), one.idle) == (1, [])


def test_one_sum_and_one_list_leave_a_node_also_where_one_actor_did_all_its_calls(monkeypatch):
    clients = FakeClients(FakeRay(monkeypatch), 3)
    monkeypatch.setattr(clients, "call", lambda index, name, returns, *given: (index, (name, given), "gathered"))
    work = Pass(WorkerCalls.evaluate, BROADCAST, [], [])
    one = Dispatch(work, clients, CallRates(), pinned=False, get=lambda references, whom: references)
    one.collected = [Collected(0, "a", "sum 0", ["u0", "u1"]), Collected(1, "b", "sum 1", ["u2"])]
    several, single = one.put_together_by_node()
    assert several == Collected(0, "a", ("add", (1, "sum 0", "u0", "u1")), ["gathered"])
    assert single == Collected(1, "b", "sum 1", ["u2"])  # is one already


class SummingClients(FakeClients):
    """Client actors that say how many clients are in the sums they hand over; one may be killed in a call."""

    placement = type("Placement", (), {"node_of": staticmethod(lambda index: f"node {index}")})

    def __init__(self, fake, count, killed=()):
        super().__init__(fake, count)
        self.killed, self.summed, self.log = set(killed), dict.fromkeys(range(count), 0), []

    def call(self, index, method, returns, *arguments):
        if method == "collect":
            count, self.summed[index] = self.summed[index], 0
            self.log.append((index, method))
            return count, f"sum of {count} by {index}"
        groups = arguments[1]
        reference = self.fake.call(index, groups)
        self.log.append((index, groups))
        self.summed[index] += sum(map(len, groups))
        if self.killed & {k for group in groups for k in group}:
            self.killed.clear()
            self.fake.lost.add(reference)
            self.summed[index] = 0  # of the actor in its place
        return reference, "uploads", "states"


class Answered:
    uploads = 0


def summed_up(fake, clients, groups):
    work = Pass(
        WorkerCalls.train, BROADCAST, groups, [float(len(group)) for group in groups], states={}, over_clients=True
    )

    def get(reference, whom):
        if isinstance(reference, list):
            return [get(one, whom) for one in reference]
        if reference in fake.lost and "collect" not in whom:
            raise RayActorError()
        return reference if "collect" in whom else Answered

    return Dispatch(work, clients, CallRates(), pinned=False, get=get).run()


def test_sums_are_asked_for_behind_the_last_call_of_each_actor(monkeypatch):
    fake = FakeRay(monkeypatch)
    clients = SummingClients(fake, 2)
    answers = summed_up(fake, clients, [[k] for k in range(8)])
    assert [index for index, method in clients.log if method == "collect"] == [0, 1]
    assert clients.log[-2:] == [(0, "collect"), (1, "collect")]
    assert sorted(answers.sums) == ["sum of 4 by 0", "sum of 4 by 1"]


def test_lost_work_that_comes_to_an_actor_afterwards_is_asked_for_too(monkeypatch):
    """The other one is killed in its only call: by then the first has been asked for its sums."""
    fake = FakeRay(monkeypatch, seconds=lambda actor, clients: 5.0 if actor else 1.0)
    clients = SummingClients(fake, 2, killed=[1])
    clients.replace = lambda index, error, groups: clients.actors.pop(index)
    answers = summed_up(fake, clients, [[0], [1]])
    assert clients.log == [(0, [[0]]), (1, [[1]]), (0, "collect"), (1, "collect"), (0, [[1]]), (0, "collect")]
    assert answers.sums == ["sum of 1 by 0", "sum of 1 by 0"]
    assert clients.faults.retries == 1


def test_a_group_that_takes_its_actor_down_is_named_whoever_was_with_it_at_first(monkeypatch):
    fake = FakeRay(monkeypatch)
    clients = SummingClients(fake, 5)  # a lost one does not come back
    clients.killed = type("Always", (set,), {"clear": lambda self: None})([4])
    with pytest.raises(RunFailure, match=r"client 4 took its actor down 4 times"):
        summed_up(fake, clients, [[k] for k in range(30)])
    assert [groups for _, groups in clients.log if [4] in groups] == [[[3], [4], [5]], [[4]], [[4]], [[4]]]


def test_of_two_that_failed_to_start_on_one_node_the_second_has_gone_with_the_first(monkeypatch):
    fake = FakeRay(monkeypatch)
    clients = FakeClients(fake, 3)
    looked_at = []

    def has_started(index):
        looked_at.append(index)
        clients.starting.clear()  # their node is gone
        return False

    clients.has_started = has_started
    for index in (1, 2):
        hello = fake.call(index, [])  # answers at once
        clients.starting[index] = lifecycle.StartingActor(hello, 0.0, 0)
    clients.ready = lambda: [0]
    groups = [[0], [1]]
    work = Pass(WorkerCalls.evaluate, BROADCAST, groups, [1.0, 1.0])
    answers = Dispatch(work, clients, CallRates(), pinned=False, get=lambda r, whom: r).run()
    assert looked_at == [1]
    assert len(answers.first) == 2
