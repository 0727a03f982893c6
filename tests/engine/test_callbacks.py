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


def test_those_that_decide_hear_first_and_who_is_left_when_one_ends_the_run():
    calls = []
    reporting, first, second = (Noting(name, calls) for name in ("reporting", "first", "second"))
    both = Callbacks([reporting], [first, second])
    for t in (6, 7):
        assert both.ask(RoundMetrics(t)) is True
        assert calls == [("first", t)]
        both.tell(RoundMetrics(t))
        assert calls == [("first", t), ("reporting", t), ("second", t)]
        calls.clear()
    assert both.on_result("result") == {"reporting": "result", "first": "result", "second": "result"}
    assert Callbacks([], [second, Callback()]).ask(RoundMetrics(1)) is None


@pytest.mark.parametrize("eval_every", [1, 0])
def test_a_run_that_is_ended_is_one_of_so_many_rounds(eval_every):
    ended = simulate(rounds=5, eval_every=eval_every, on_round=StopAfterTwo().on_round)
    whole = simulate(rounds=2, eval_every=eval_every)
    assert ended.stopped == "a callback ended the run"
    assert comparable(ended) == comparable(whole)


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
