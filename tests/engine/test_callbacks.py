"""Callbacks: called in order, added up, and able to end a run."""

import json

import pytest

from raysim.cli import main
from raysim.engine.callbacks import Callback, Callbacks
from raysim.engine.round_metrics import RoundMetrics
from tests.simulate import comparable, simulate

SMALL = ["--train-size", "60", "--test-size", "40", "--clients", "3", "--model", "small-cnn", "--in-process"]


class StopAfterTwo(Callback):
    """Ends the run after its second round."""

    def on_round(self, metrics):
        return metrics.round == 2


class Noting(Callback):
    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def on_round(self, metrics):
        self.calls.append((self.name, metrics.round))
        return self.name == "first"

    def on_result(self, result):
        return {self.name: result}


def test_all_hear_of_a_round_also_after_one_has_ended_the_run():
    calls = []
    both = Callbacks([Noting("first", calls), Noting("second", calls)])
    assert both.on_round(RoundMetrics(7)) is True
    assert calls == [("first", 7), ("second", 7)]
    assert both.on_result("result") == {"first": "result", "second": "result"}
    assert Callbacks([Callback()]).on_round(RoundMetrics(1)) is None


@pytest.mark.parametrize("eval_every", [1, 0])
def test_a_run_that_is_ended_is_one_of_so_many_rounds(eval_every):
    ended = simulate(rounds=5, eval_every=eval_every, on_round=StopAfterTwo().on_round)
    whole = simulate(rounds=2, eval_every=eval_every)
    assert ended.model_sha256 == whole.model_sha256
    for metrics in (*ended.history, *whole.history):
        metrics.gflops = {}  # counted in the last round of the configuration
    assert comparable(ended)[2] == comparable(whole)[2]


def test_it_ends_through_the_command_line_and_everything_is_written(tmp_path):
    words = [*SMALL, "--rounds", "5", "--eval-every", "0", "--callback", f"{__name__}:StopAfterTwo"]
    assert main(["run", *words, "--out", str(tmp_path / "run")]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert summary["rounds"] == len(lines) == 2
    assert summary["final_accuracy"] == lines[-1]["accuracy"] is not None
    assert (tmp_path / "run" / "report.html").exists()
    assert main(["run", *SMALL, "--rounds", "2", "--eval-every", "0", "--out", str(tmp_path / "short")]) == 0
    assert json.loads((tmp_path / "short" / "summary.json").read_text())["model_sha256"] == summary["model_sha256"]
