from dataclasses import replace

from raysim.engine.messages import Broadcast
from raysim.engine.runner import WorkerCalls
from raysim.engine.work_queue import Call, Pace, Pass, WorkQueue, in_groups, spans


def test_groups_are_consecutive_and_only_by_size():
    assert in_groups([2, 3, 5, 7, 11], 2) == [[2, 3], [5, 7], [11]]


def test_longest_first_in_shrinking_chunks_and_nothing_lost():
    groups = in_groups(list(range(100)), 1)
    costs = [float(i % 10 + 1) for i in range(100)]
    queue = WorkQueue(groups, costs)
    chunks = []
    while queue:
        chunks.append(queue.take(1 / 4))
    assert sorted(g for chunk in chunks for g in chunk) == groups
    order = [costs[g[0]] for chunk in chunks for g in chunk]
    assert order == sorted(order, reverse=True)
    work = [sum(costs[g[0]] for g in chunk) for chunk in chunks]
    assert work[0] <= sum(costs) / 8
    assert work[-1] == 1.0
    assert len(chunks) < 60


def test_lost_work_comes_back_first():
    queue = WorkQueue([[0], [1], [2]], [3.0, 2.0, 1.0])
    first = queue.take(1.0)
    assert first == [[0]]
    queue.give_back(first, suspects=[])
    assert queue.take(1.0) == [[0]]
    assert queue.left == 3.0


def test_what_may_have_taken_an_actor_down_goes_alone():
    queue = WorkQueue(in_groups(list(range(8)), 1), [1.0] * 8)
    earlier, lost = queue.take(0.5), queue.take(0.5)
    queue.give_back(earlier + lost, suspects=lost)
    assert [len(queue.take(1.0)) for _ in range(4)] == [2, 1, 1, 2]


def test_one_dominating_group_goes_alone():
    queue = WorkQueue([[0], [1], [2]], [1.0, 100.0, 1.0])
    assert queue.take(1 / 2) == [[1]]


def test_a_chunk_is_no_smaller_than_what_makes_a_call_worthwhile_and_no_larger_than_a_share():
    groups = in_groups(list(range(40)), 1)
    queue = WorkQueue(groups, [1.0] * 40)
    assert [len(queue.take(1 / 4, least=3.0)) for _ in range(9)] == [5, 5, 5, 5, 3, 3, 3, 3, 3]
    queue = WorkQueue(groups, [1.0] * 40)
    assert [len(queue.take(1 / 4, least=1e9)) for _ in range(4)] == [10, 10, 10, 10]
    assert len(WorkQueue(groups, [1.0] * 40).take(0.0, least=3.0)) == 1


def test_actors_that_are_alike_are_given_more_at_first():
    assert not Pace().alike()
    assert not Pace({0: 1.3, 1: 0.7}).alike()
    assert Pace({0: 1.1, 1: 0.9}).alike()
    queue = WorkQueue(in_groups(list(range(20)), 1), [1.0] * 20)
    assert [len(queue.take(1 / 2, alike=True)) for _ in range(5)] == [8, 8, 1, 1, 1]


def test_what_a_slow_actor_leaves_is_dealt_in_small_chunks():
    queue = WorkQueue(in_groups(list(range(20)), 1), [1.0] * 20)
    assert [len(queue.take(0.48, alike=True)) for _ in range(4)] == [7, 7, 2, 2]  # the third, of 0.04, takes nothing


def test_states_travel_only_with_their_clients():
    sent = Broadcast(1, 1, None)
    work = Pass(WorkerCalls.reply, sent, [[1, 2], [3]], [1, 1], ("x",), {2: "s2", 3: "s3"})
    assert work.arguments([[1, 2]]) == (sent, [[1, 2]], {2: "s2"}, "x")
    assert Pass(WorkerCalls.evaluate, sent, [[1]], [1]).arguments([[1]]) == (sent, [[1]], None)
    assert (work.name, work.kind) == ("reply", "reply x")


def test_a_call_is_told_the_models_of_its_own_clients_only():
    sent = Broadcast(1, 1, None, route={1: 4, 3: 5})
    work = Pass(WorkerCalls.train, sent, [[1, 2], [3]], [1, 1], states={})
    assert work.arguments([[1, 2]])[0] == replace(sent, route={1: 4})
    assert work.arguments([[3]])[0].route == {3: 5}


def test_calls_of_an_actor_that_follow_at_once_are_one_span():
    calls = [Call(0, 10.0, 11.0), Call(1, 10.0, 10.5), Call(0, 11.001, 12.0), Call(1, 10.6, 11.0)]
    assert spans({"training": calls}, 10.0) == {"training": [[0, 0.0, 2.0], [1, 0.0, 0.5], [1, 0.6, 1.0]]}


def test_what_a_lost_actor_did_stands_by_itself():
    calls = [Call(0, 1.0, 2.0), Call(0, 2.0, 3.0, lost=True), Call(0, 3.0, 4.0)]
    assert spans({"training": calls, "evaluation": [Call(0, 5.0, 6.0)]}, 1.0) == {
        "training": [[0, 0.0, 1.0], [0, 2.0, 3.0]], "lost": [[0, 1.0, 2.0]], "evaluation": [[0, 4.0, 5.0]],
    }  # fmt: skip
