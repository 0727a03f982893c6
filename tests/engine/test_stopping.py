"""Runs that end early, and go on later: by the rules, by a callback, and by more rounds."""

import json

import pytest

from raysim.cli import main
from raysim.engine.callbacks import Callback
from raysim.engine.round_metrics import RoundMetrics
from raysim.engine.stopping import reason_to_stop
from raysim.errors import InputError
from tests.faults.harness import events
from tests.simulate import configure, simulate

SMALL = [
    "--train-size", "100", "--test-size", "50", "--clients", "4", "--active", "3", "--model", "mlp", "--image-size",
    "8", "--in-process", "--method", "scaffold",
]  # fmt: skip


def history(*accuracies):
    return [RoundMetrics(round=i, accuracy=accuracy) for i, accuracy in enumerate(accuracies, 1)]


@pytest.mark.parametrize(
    ("settings", "accuracies", "says"),
    [
        ({}, (0.9, 0.1, 0.1), ""),
        ({"stop_accuracy": 0.8}, (0.5, 0.79), ""),
        ({"stop_accuracy": 0.8}, (0.5, 0.8), "accuracy 0.8000 reached --stop-accuracy 0.8"),
        ({"stop_accuracy": 0.8}, (0.9, None), ""),  # a round that was not evaluated says nothing
        ({"patience": 2}, (0.5, 0.4), ""),
        ({"patience": 2}, (0.5, 0.4, 0.5), "no better accuracy than round 1's 0.5000 for --patience 2 rounds"),
        ({"patience": 2}, (0.5, 0.4, 0.6), ""),
        ({"patience": 2}, (0.5, None, None), ""),
        ({"patience": 2}, (0.5, None, None, 0.4), "no better accuracy than round 1's 0.5000 for --patience 2 rounds"),
        ({"patience": 2, "stop_accuracy": 0.5}, (), ""),
    ],
)
def test_the_rules(settings, accuracies, says):
    assert reason_to_stop(configure(**settings), history(*accuracies)) == says


@pytest.mark.parametrize("key", ["stop_accuracy", "patience"])
def test_a_rule_without_evaluations_is_refused(key):
    with pytest.raises(InputError, match=f"^--{key.replace('_', '-')} needs the accuracy .*; give --eval-every 1$"):
        configure(**{key: 1, "eval_every": 0})


def test_a_run_that_a_rule_ends_is_one_of_so_many_rounds():
    whole = simulate(rounds=6)
    best = max(range(6), key=lambda i: (whole.history[i].accuracy, -i))
    reached = simulate(rounds=6, stop_accuracy=whole.history[best].accuracy)
    assert len(reached.history) == best + 1
    assert reached.stopped.startswith("accuracy ") == (best < 5)  # the last round ends a run anyway
    assert reached.model_sha256 == simulate(rounds=best + 1).model_sha256


def summary_of(out):
    return json.loads((out / "summary.json").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What runs of 2, 3 and 5 rounds end in."""
    folder = tmp_path_factory.mktemp("whole")
    found = {}
    for rounds in (2, 3, 5):
        assert main(["run", *SMALL, "--rounds", str(rounds), "--out", str(folder / str(rounds))]) == 0
        found[rounds] = summary_of(folder / str(rounds))
    return found


HASHES = ("model_sha256", "server_state_sha256")


def hashes(summary):
    return [summary[key] for key in HASHES]


@pytest.mark.parametrize("checkpoints", [1, 2, 0])
def test_a_finished_run_is_extended(whole, tmp_path, checkpoints, capsys):
    out = tmp_path / "run"
    every = ["--checkpoint-every", str(checkpoints)]
    assert main(["run", *SMALL, *every, "--rounds", "2", "--eval-every", "3", "--out", str(out)]) == 0
    assert main(["resume", str(out)]) == 0
    assert "is finished: nothing to go on with" in capsys.readouterr().out
    assert main(["resume", str(out), "--rounds", "5"]) == 0
    summary = summary_of(out)
    assert hashes(summary) == hashes(whole[5])
    assert (summary["rounds"], summary["stopped"]) == (5, None)
    assert summary["gflops_per_client_round"] == whole[5]["gflops_per_client_round"]
    assert json.loads((out / "config.json").read_text())["settings"]["rounds"] == 5
    (event,) = events(out, "extended")
    assert (event["round"], event["text"]) == (2, "goes on to --rounds 5")
    assert main(["resume", str(out), "--rounds", "4"]) == 2
    assert "has 5 rounds, more than --rounds 4; give at least 5" in capsys.readouterr().err
    assert summary_of(out) == summary


class AfterTwo(Callback):
    def on_round(self, metrics):
        return metrics.round == 2


def test_a_run_that_a_callback_ended_goes_on_with_more_rounds(whole, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["run", *SMALL, "--rounds", "4", "--callback", f"{__name__}:AfterTwo", "--out", str(out)]) == 0
    summary = summary_of(out)
    assert (summary["rounds"], summary["stopped"]) == (2, f"--callback {__name__}:AfterTwo ended the run")
    assert hashes(summary) == hashes(whole[2])
    assert f"; {summary['stopped']}\n" in capsys.readouterr().out
    assert [event["round"] for event in events(out, "ended_early")] == [2]
    assert "Ended after 2 rounds: --callback" in (out / "report.html").read_text()
    # Killed after the decision: the same run ends there again, without asking anyone.
    (out / "summary.json").unlink()
    assert main(["resume", str(out)]) == 0
    assert hashes(summary_of(out)) == hashes(whole[2])
    assert main(["resume", str(out)]) == 0
    assert "ended the run): nothing to go on with" in capsys.readouterr().out
    assert main(["resume", str(out), "--rounds", "5"]) == 0
    assert hashes(summary_of(out)) == hashes(whole[5])


def test_a_run_that_ran_out_of_patience_goes_on_with_more(whole, tmp_path, capsys):
    """Killed between the extension's first steps it goes on, too."""
    out = tmp_path / "run"
    stop = ["--stop-accuracy", "0.0001"]
    assert main(["run", *SMALL, *stop, "--rounds", "3", "--out", str(out)]) == 0
    assert summary_of(out)["rounds"] == 1
    assert main(["resume", str(out), "--rounds", "5"]) == 0
    assert "reached --stop-accuracy 0.0001): nothing to go on with" in capsys.readouterr().out
    assert main(["resume", str(out), "--rounds", "5", "--stop-accuracy", "none"]) == 0
    assert hashes(summary_of(out)) == hashes(whole[5])


def test_a_method_that_goes_by_the_number_of_rounds_is_not_extended(tmp_path, capsys):
    words = ["--method", "feddpms", "--model", "feddpms-vae", "--feddpms.quota", "0", "--clients", "3", "--in-process"]
    data = ["--train-size", "60", "--test-size", "40", "--lr", "0.0001"]
    out = str(tmp_path / "run")
    assert main(["run", *words, *data, "--rounds", "2", "--privacy", "0", "--out", out]) == 0
    assert main(["resume", out, "--rounds", "3"]) == 2
    assert "has --rounds 2, not 3; leave it as it was" in capsys.readouterr().err
