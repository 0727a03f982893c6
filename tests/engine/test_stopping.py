"""Runs that end early, and go on later: by the rules, by a callback, and by more rounds."""

import copy
import json
from typing import ClassVar

import pytest

from raysim.cli import main
from raysim.engine.callbacks import Callback
from raysim.engine.round_metrics import RoundMetrics
from raysim.engine.stopping import how_to_extend, reason_to_stop
from raysim.errors import InputError
from raysim.observe.listing import lines
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
        # Only rounds that --eval-every asks for count: another was the last of a run that was extended.
        ({"patience": 2, "eval_every": 3}, (None, None, 0.4, 0.9, None, 0.5), ""),
        ({"patience": 2, "eval_every": 3}, (None, None, 0.5, None, 0.4), ""),
        ({"stop_accuracy": 0.8, "eval_every": 2}, (None, 0.5, 0.9), ""),
        ({"stop_accuracy": 0.8, "eval_every": 2}, (None, 0.8), "accuracy 0.8000 reached --stop-accuracy 0.8"),
    ],
)
def test_the_rules(settings, accuracies, says):
    assert reason_to_stop(configure(**settings), history(*accuracies)) == says


@pytest.mark.parametrize("key", ["stop_accuracy", "patience"])
def test_a_rule_without_evaluations_is_refused(key):
    with pytest.raises(InputError, match=f"^--{key.replace('_', '-')} needs the accuracy .*; give --eval-every 1$"):
        configure(**{key: 1, "eval_every": 0})


@pytest.mark.parametrize(
    ("settings", "accuracies", "how"),
    [
        ({}, (0.9, 0.1, 0.1), "--rounds above 3"),
        ({"rounds": 20, "patience": 2}, (0.5, 0.4, 0.5), "--patience none"),
        ({"rounds": 20, "patience": 2, "stop_accuracy": 0.1}, (0.5, 0.4, 0.5), "--stop-accuracy none --patience none"),
        ({"rounds": 3, "patience": 2}, (0.5, 0.4, 0.5), "--rounds above 3 --patience none"),
        ({"rounds": 20, "patience": 2}, (0.5, 0.4, 0.6), "--rounds above 20"),  # a callback has ended it
        ({"rounds": 3, "method": "feddpms", "model": "feddpms-vae"}, (0.5, 0.4, 0.6), ""),  # which goes by the rounds
    ],
)
def test_how_an_ended_run_goes_on(settings, accuracies, how):
    assert how_to_extend(configure(**settings), history(*accuracies)) == how


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
    assert "is finished: nothing to go on with; give --rounds above 2 to go on\n" in capsys.readouterr().out
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


@pytest.mark.parametrize(
    ("every", "patience", "seed", "rounds"),
    [(3, 4, 2, 9), (2, 4, 2, 12), (2, 2, 1, 6)],
)
def test_a_run_with_patience_that_is_extended_ends_where_a_longer_one_does(tmp_path, every, patience, seed, rounds):
    """Whatever accuracy its own last round had, in which the longer one has none."""
    words = [*SMALL, "--seed", str(seed), "--eval-every", str(every), "--patience", str(patience)]
    assert main(["run", *words, "--rounds", "20", "--out", str(tmp_path / "whole")]) == 0
    assert summary_of(tmp_path / "whole")["rounds"] == rounds
    for first in (5, 7):
        out = tmp_path / str(first)
        assert main(["run", *words, "--rounds", str(first), "--out", str(out)]) == 0
        assert main(["resume", str(out), "--rounds", "20"]) == 0
        assert without_times(summary_of(out)) == without_times(summary_of(tmp_path / "whole"))
        assert [line["rounds"] for line in (plain(out), plain(tmp_path / "whole"))] == [rounds, rounds]
        assert without_times(plain(out)) == without_times(plain(tmp_path / "whole"))


def without_times(summary):
    return {key: value for key, value in summary.items() if key not in ("seconds", "setup_seconds", "run", "of_rounds")}


def plain(out):
    """The line of `raysim show`."""
    return lines([out])[0].plain()


ENDINGS = {
    "a rule": ["--stop-accuracy", "0.0001", "--eval-every", "2"],
    "a callback": ["--callback", f"{__name__}:AfterTwo,{__name__}:Watching", "--eval-every", "3"],
    "its last round": ["--rounds", "2", "--eval-every", "3"],
}


class Watching(Callback):
    told: ClassVar[list] = []

    def on_round(self, metrics):
        self.told.append(copy.deepcopy(metrics))

    def on_result(self, result):
        self.told.append(result.history[-1])


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_round_is_told_once_and_the_last_one_whole(whole, tmp_path, ending, capsys):
    """An evaluation that only the end asks for, and a client's operations, are in what everybody is told."""
    Watching.told.clear()
    watched = ["--callback", f"{__name__}:Watching"]
    words = [*SMALL, "--rounds", "4", *watched, *ENDINGS[ending]]
    assert main(["run", *words, "--out", str(tmp_path / "run")]) == 0
    first, last, at_the_end = Watching.told
    assert (first.round, first.accuracy, first.gflops) == (1, None, {})
    assert (last.round, last.gflops) == (2, at_the_end.gflops)
    assert last.accuracy == whole[2]["final_accuracy"]
    assert last.phases["evaluation"] > 0
    told = capsys.readouterr().out
    assert [told.count(f"round {t}/") for t in (1, 2)] == [1, 1]
    kept = [[json.loads(line) for line in (tmp_path / "run" / name).read_text().splitlines()] for name in LINES]
    assert [[line["round"] for line in lines] for lines in kept] == [[1, 2], [1, 2]]
    assert kept[0][-1] == last.to_line()
    assert "evaluation" in kept[1][-1]["spans"]
    assert all(span[2] <= kept[1][-1]["seconds"] + 0.001 for span in kept[1][-1]["spans"]["evaluation"])
    summary = summary_of(tmp_path / "run")
    assert hashes(summary) == hashes(whole[2])
    assert summary["gflops_per_client_round"] == whole[2]["gflops_per_client_round"]
    assert summary["gflops_per_client_round"]["training"] > 0


LINES = ("metrics.jsonl", "timeline.jsonl")


class Saying(Callback):
    def on_round(self, metrics):
        return "it is\ngood enough" if metrics.round == 2 else ""


def test_a_text_of_a_callback_ends_the_run_and_is_the_reason(whole, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["run", *SMALL, "--rounds", "4", "--callback", f"{__name__}:Saying", "--out", str(out)]) == 0
    summary = summary_of(out)
    assert (summary["rounds"], summary["stopped"]) == (2, "it is good enough")
    assert hashes(summary) == hashes(whole[2])
    assert "s; it is good enough\n" in capsys.readouterr().out
    assert main(["resume", str(out)]) == 0
    assert (
        "finished (it is good enough): nothing to go on with; give --rounds above 4 to go on" in capsys.readouterr().out
    )


class Killed(Callback):
    def on_round(self, metrics):
        if metrics.round == 3:
            raise KeyboardInterrupt


def test_a_run_is_not_cut_where_its_last_round_has_no_evaluation(whole, tmp_path, capsys):
    out = tmp_path / "run"
    words = ["--rounds", "5", "--eval-every", "4", "--callback", f"{__name__}:Killed"]
    assert main(["run", *SMALL, *words, "--out", str(out)]) == 130
    assert main(["resume", str(out), "--rounds", "2", "--callback", "none"]) == 2
    assert "has 2 rounds, and went on as if the last were not its last; give at least --rounds 3" in (
        capsys.readouterr().err
    )
    assert main(["resume", str(out), "--rounds", "3", "--callback", "none"]) == 0
    assert hashes(summary_of(out)) == hashes(whole[3])


def test_a_rule_that_is_given_later_ends_the_run_after_a_whole_round(whole, tmp_path):
    """The round before has no counted operations: nobody knew that it would be the last."""
    out = tmp_path / "run"
    assert main(["run", *SMALL, "--rounds", "5", "--callback", f"{__name__}:Killed", "--out", str(out)]) == 130
    assert main(["resume", str(out), "--stop-accuracy", "0.0001", "--callback", "none"]) == 0
    summary = summary_of(out)
    assert hashes(summary) == hashes(whole[3])
    assert summary["gflops_per_client_round"] == whole[3]["gflops_per_client_round"]


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
    says = "reached --stop-accuracy 0.0001): nothing to go on with; give --stop-accuracy none to go on\n"
    assert says in capsys.readouterr().out
    assert main(["resume", str(out), "--rounds", "5", "--stop-accuracy", "none"]) == 0
    assert hashes(summary_of(out)) == hashes(whole[5])


def test_a_method_that_goes_by_the_number_of_rounds_is_not_extended(tmp_path, capsys):
    words = ["--method", "feddpms", "--model", "feddpms-vae", "--feddpms.quota", "0", "--clients", "3", "--in-process"]
    data = ["--train-size", "60", "--test-size", "40", "--lr", "0.0001"]
    out = str(tmp_path / "run")
    assert main(["run", *words, *data, "--rounds", "2", "--privacy", "0", "--out", out]) == 0
    assert main(["resume", out, "--rounds", "3"]) == 2
    assert "has --rounds 2, not 3; leave it as it was" in capsys.readouterr().err
