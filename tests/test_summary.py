"""The figures of summary.json: each worked out once more, from a history written by hand."""

from types import SimpleNamespace

import pytest

from raysim.engine.evaluator import Evaluator
from raysim.engine.round_metrics import RoundMetrics
from raysim.single_run import gflops_per_round, summarise
from tests.simulate import configure, simulate

ACCURACIES = [0.9, 0.2, None, 0.7, 0.3, 0.8, 0.5, 0.1, None, 0.6]
HISTORY = [
    RoundMetrics(
        round=t, accuracy=accuracy, bytes_up=1000 * t, bytes_down=100 * t, failures=t % 3,
        gflops={"hfmds": 4.0} if t in (2, 6) else {"training": 1.5} if t == 10 else {},
        reported={"psnr": float(t)} if t in (2, 6) else {},
    )
    for t, accuracy in enumerate(ACCURACIES, 1)
]  # fmt: skip


def summary(history: list[RoundMetrics], **more) -> dict:
    result = SimpleNamespace(
        history=history, model_sha256="ab", server_state_sha256="cd", shared={}, stopped="", **more
    )
    return summarise(configure(method="fedprox"), result)


def test_every_figure_of_a_summary():
    found = summary(HISTORY)
    assert found.pop("best_five_accuracy") == pytest.approx((0.9 + 0.8 + 0.7 + 0.6 + 0.5) / 5)
    assert found.pop("late_accuracy") == pytest.approx((0.1 + 0.6) / 2)  # a quarter of the eight evaluated rounds
    assert found == {
        "method": "fedprox", "final_accuracy": 0.6, "best_accuracy": 0.9, "rounds": 10,
        "model_sha256": "ab", "server_state_sha256": "cd", "synthetic_sha256": None, "psnr": 6.0,
        "gflops_per_client_round": {"hfmds": 0.8, "training": 1.5},  # two exchanges of 4, over ten rounds
        "bytes_up": 55_000, "bytes_down": 5_500, "failures": 3 * (1 + 2) + 1, "stopped": None,
    }  # fmt: skip


def test_a_summary_of_few_rounds():
    found = summary(HISTORY[:2])
    assert found["best_five_accuracy"] == pytest.approx((0.9 + 0.2) / 2)
    assert (found["final_accuracy"], found["late_accuracy"], found["psnr"]) == (0.2, 0.2, 2.0)


def test_training_that_was_counted_again_counts_once():
    """Where a run was extended, its last round has counted anew."""
    history = [RoundMetrics(round=t, gflops={"training": 2.0 * t, "mine": 1.0}) for t in (1, 2)]
    assert gflops_per_round(history) == {"training": 4.0, "mine": 1.0}


def test_the_clients_of_all_rounds_are_attacked_and_means_by_those_of_the_last(monkeypatch):
    config, asked = configure(rounds=3, active=2), []

    def attack(self, broadcast, means, trained, last):
        asked.append((trained, last))
        return []

    monkeypatch.setattr(Evaluator, "attack", attack)
    simulate(rounds=3, active=2, privacy=10)
    cohorts = [config.cohort(t) for t in (1, 2, 3)]
    assert asked == [(sorted({client for cohort in cohorts for client in cohort}), cohorts[-1])]
    assert len(asked[0][0]) > 2  # else all rounds would be as good as the last
