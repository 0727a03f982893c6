"""Dispatch alone, on a Ray that only pretends: calls end when their time has come, by a clock of its own."""

import itertools

import pytest
from ray.exceptions import RayActorError

from raysim.engine.failures import FailurePolicy, FaultCount
from raysim.engine.ray_runner import dispatch
from raysim.engine.ray_runner.dispatch import CallRates, Deadlines, Dispatch
from raysim.engine.runner import WorkerCalls
from raysim.engine.work_queue import Pass


class FakeRay:
    """As much of Ray as a dispatch uses. A call takes as many seconds as its groups have clients; some never end."""

    def __init__(self, monkeypatch, hangs=()):
        self.now, self.waits, self.killed = 0.0, 0, []
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
        self.killed.append(actor.index)
        for reference, index in self.actor_of.items():
            if index == actor.index:
                self.ends[reference] = min(self.ends[reference], self.now)


class FakeActor:
    def __init__(self, fake, index):
        self.fake, self.index, self.call = fake, index, self

    def options(self, name, num_returns):
        return self

    def remote(self, name, broadcast, groups, states):
        reference = next(self.fake.numbers)
        self.fake.actor_of[reference] = self.index
        clients = [k for group in groups for k in group]
        hung = self.fake.hangs & set(clients)
        self.fake.hangs -= hung  # only the first time
        self.fake.ends[reference] = float("inf") if hung else self.fake.now + len(clients)
        return reference


class FakeClients:
    """Client actors that are all up; one that is lost is there again at once."""

    def __init__(self, fake, count, **limits):
        self.policy = FailurePolicy("stop", 0, limits.get("client_timeout"), limits.get("watchdog", 600.0))
        self.faults, self.starting, self.events = FaultCount(), {}, []
        self.actors = {i: FakeActor(fake, i) for i in range(count)}

    def __len__(self):
        return len(self.actors)

    def ready(self):
        return sorted(self.actors)

    def on_event(self, kind, /, **details):
        self.events.append((kind, details))

    def replace(self, index, error, groups):
        self.events.append(("replaced", {"actor": index}))


def carried_out(fake, clients, count, rates=None):
    """A pass over so many test batches, one in a group; a killed actor's call fails as Ray's would."""
    work = Pass(WorkerCalls.evaluate, "broadcast", [[i] for i in range(count)], [1.0] * count)

    def get(reference, whom):
        if fake.actor_of[reference] in fake.killed:
            fake.killed.remove(fake.actor_of[reference])
            raise RayActorError()
        return reference

    one = Dispatch(work, clients, rates or CallRates(), pinned=False, get=get)
    one.asked = 0
    allowed = one.allowed

    def counted(call):
        one.asked += 1
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
    assert one.asked <= calls + actors
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
        Pass(WorkerCalls.evaluate, "broadcast", [[0]], [1.0]), clients, rates, pinned=False, get=lambda r, whom: r
    )
    one.idle = [0]
    one.hand_out()
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
