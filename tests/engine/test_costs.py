import numpy as np
import pytest

from raysim.engine.costs import LearnedCosts
from raysim.engine.messages import ClientReport, Reports
from raysim.engine.work_queue import Answers, Pace

SIZES = np.array([10, 20, 40, 80, 160, 320])


def took(seconds: dict[int, float], actor: int = 0) -> Answers:
    """The answers of one call, whose clients took so long."""
    return Answers([Reports.of([ClientReport(client, seconds=s) for client, s in seconds.items()])], [actor])


def costs_of(costs: LearnedCosts, *groups, kind="train") -> list[float]:
    return costs.of_groups(kind, list(groups))[0]


def test_before_anything_is_known_a_group_costs_its_samples():
    assert LearnedCosts(SIZES).of_groups("train", [[0, 1], [2], [5]]) == ([30.0, 40.0, 320.0], Pace())


def test_a_fixed_number_of_steps_costs_everyone_the_same():
    costs = LearnedCosts(SIZES)
    costs.learn("train", took(dict.fromkeys(range(6), 0.7)))
    assert costs_of(costs, [0], [3], [5]) == pytest.approx([410 / 3] * 3)
    assert costs.of_groups("train", [[0], [3], [5]])[1].seconds == pytest.approx(3 * 0.7 / 410)
    assert costs_of(costs, [0], [3], kind="reply hfmds") == [10.0, 80.0]  # of which nothing is known


def test_sizes_not_seen_lie_between_their_neighbours_and_larger_ones_in_proportion():
    costs = LearnedCosts(SIZES)
    costs.learn("train", took({1: 1.0, 3: 4.0}))  # 20 and 80 samples
    found = np.array(costs_of(costs, *[[k] for k in range(6)]))
    assert found.sum() == pytest.approx(SIZES.sum())
    assert found / found[1] == pytest.approx([1.0, 1.0, 2.0, 4.0, 8.0, 16.0])


def test_the_last_passes_count_most_and_who_was_left_out_does_not():
    costs = LearnedCosts(SIZES)
    costs.learn("train", took({0: 1.0, 5: 1.0}))
    for _ in range(12):
        costs.learn("train", took({0: 1.0, 5: 3.0, 2: 0.0}))
    small, large = costs_of(costs, [0], [5])
    assert large / small == pytest.approx(3.0, rel=1e-3)
    nothing = LearnedCosts(SIZES)
    nothing.learn("train", took({0: 0.0}))
    assert costs_of(nothing, [0], [5]) == [10.0, 320.0]


def test_what_is_slow_and_what_is_costly_are_told_apart():
    """Actor 2 is a quarter as fast, and has had the small clients mostly."""
    seconds, speed = np.array([1.0, 1.2, 1.6, 2.4, 4.0, 7.2]), {0: 1.0, 1: 1.0, 2: 0.25}
    costs = LearnedCosts(SIZES)
    for dealt in ({0: [5, 1], 1: [4, 3], 2: [0, 2]}, {0: [4, 0], 1: [5, 2], 2: [1, 3]}, {0: [3, 2], 1: [5, 1], 2: [4]}):
        calls = [took({k: seconds[k] / speed[actor] for k in clients}, actor) for actor, clients in dealt.items()]
        first = [one for call in calls for one in call.first]
        costs.learn("train", Answers(first, list(dealt)))
    found, pace = costs.of_groups("train", [[k] for k in range(6)])
    assert np.array(found) / found[0] == pytest.approx(seconds, rel=0.05)
    assert pace.of(2) / pace.of(0) == pytest.approx(0.25, rel=0.1)
    assert sum(map(pace.of, range(3))) == pytest.approx(3.0)
    assert pace.of(17) == 1.0  # not known


def test_an_actor_that_was_slow_once_and_had_nothing_since_is_tried_again():
    costs = LearnedCosts(SIZES)
    costs.learn("train", Answers(took({0: 1.0, 1: 1.0}).first + took({0: 20.0}).first, [0, 1]))
    was = costs.of_groups("train", [[0]])[1].of(1)
    for _ in range(12):
        costs.learn("train", took({0: 1.0, 1: 1.0, 2: 1.0}, actor=0))
    assert was < 0.5
    assert costs.of_groups("train", [[0]])[1].of(1) > 0.7
