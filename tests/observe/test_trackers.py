"""Trackers hear of a run; what goes wrong in them is reported and, after the start, costs nobody the run."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from raysim import single_run as running
from raysim.cli import main
from raysim.engine.round_metrics import RoundMetrics
from raysim.errors import RaysimError
from raysim.observe.trackers import Callback, Guarded, figures, load_trackers
from raysim.observe.tracking.tensorboard import TensorBoard

SMALL = [
    "--train-size", "60", "--test-size", "40", "--clients", "3", "--model", "small-cnn", "--rounds", "2",
    "--in-process", "--method", "fedprox",
]  # fmt: skip
HEARD: list[tuple] = []


class Listener(Callback):
    def on_start(self, settings, out):
        HEARD.append(("start", settings["method"], out))

    def on_round(self, line):
        HEARD.append(("round", line["round"], line["accuracy"]))

    def on_end(self, summary):
        HEARD.append(("end", summary["final_accuracy"]))


class Rude(Callback):
    def on_round(self, line):
        HEARD.append(("rude", line["round"]))
        raise ConnectionError("nobody\nat home")


class Impatient(Callback):
    def on_round(self, metrics):
        return metrics.round == 2

    def on_result(self, result):
        return {"patience": len(result.history)}


class Unwilling(Callback):
    def on_start(self, settings, out):
        raise ConnectionError("nobody at home")


@pytest.fixture(autouse=True)
def heard():
    HEARD.clear()
    return HEARD


def test_they_hear_of_the_start_every_round_and_the_end(tmp_path, heard):
    out = tmp_path / "run"
    assert main(["run", *SMALL, "--out", str(out), "--callback", f"{__name__}:Listener"]) == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((out / "summary.json").read_text())
    rounds = [("round", line["round"], line["accuracy"]) for line in lines]
    assert heard == [("start", "fedprox", out), *rounds, ("end", summary["final_accuracy"])]


def test_one_that_raises_is_left_out_from_then_on_and_the_others_go_on(tmp_path, heard, capsys):
    both = f"{__name__}:Rude,{__name__}:Listener"
    assert main(["run", *SMALL, "--out", str(tmp_path / "run"), "--callback", both]) == 0
    assert [what for what, *_ in heard] == ["start", "rude", "round", "round", "end"]
    says = f"--callback {__name__}:Rude.on_round: ConnectionError: nobody at home; the run goes on without it"
    assert f"warning: {says}\n" in capsys.readouterr().out
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [event["text"] for event in events if event["event"] == "warning"] == [says]


def test_one_may_end_the_run_and_add_to_its_summary(tmp_path):
    out = tmp_path / "run"
    assert main(["run", *SMALL, "--rounds", "5", "--out", str(out), "--callback", f"{__name__}:Impatient"]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["rounds"], summary["patience"]) == (2, 2)
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 2


def test_one_that_cannot_start_ends_the_run_in_one_line(tmp_path, capsys):
    assert main(["run", *SMALL, "--out", str(tmp_path / "run"), "--callback", f"{__name__}:Unwilling"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("Unwilling.on_start: ConnectionError: nobody at home; put that right or leave it out")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tracking", "--callback 'tracking': write MODULE:CLASS"),
        ("not_there:Tracker", "--callback not_there:Tracker: ModuleNotFoundError"),
        (f"{__name__}:Nobody", "AttributeError"),
    ],
)
def test_a_wrong_name_is_told_before_anything_starts(name, says, tmp_path, capsys):
    assert main(["run", *SMALL, "--out", str(tmp_path / "run"), "--callback", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert not (tmp_path / "run").exists()


def test_figures_are_the_numbers_of_a_line():
    line = {"round": 3, "accuracy": None, "loss": 1.5, "clients": 4, "terms": {"fedprox": 0.25}, "generator.fid": 2}
    expected = {"loss": 1.5, "clients": 4.0, "terms/fedprox": 0.25, "generator.fid": 2.0}
    assert figures(line) == expected
    zeros = dict.fromkeys(("bytes_up", "bytes_down", "seconds", "failures", "retries"), 0.0)
    assert figures(RoundMetrics.from_line(line)) == expected | zeros


class Everything:
    """Has every hook, and is no subclass of Callback; `fails` names one that raises."""

    def __init__(self, fails="", answers=()):
        self.fails, self.answers, self.calls = fails, dict(answers), []

    def __getattr__(self, name):
        if not name.startswith("on_") and name != "close":
            raise AttributeError(name)

        def hook(*arguments):
            self.calls.append(name)
            if name == self.fails:
                raise ConnectionError("nobody\nat home")
            return self.answers.get(name)

        return hook


HOOKS = ["on_start", "on_round", "on_event", "on_result", "on_end", "close"]


def call_all(guarded, out) -> tuple:
    guarded.on_start({}, out)
    ends = guarded.on_round(RoundMetrics(1))
    guarded.on_event("note", {})
    added = guarded.on_result(None)
    guarded.on_end({})
    guarded.close()
    return ends, added


@pytest.mark.parametrize("fails", HOOKS[1:])
def test_a_failing_hook_is_reported_once_and_only_close_follows(tmp_path, fails):
    guarded, said = Guarded(Everything(fails)), []
    guarded.complain = said.append
    call_all(guarded, tmp_path)
    reached = HOOKS[: HOOKS.index(fails) + 1]
    assert guarded.callback.calls == [*reached, *(["close"] if fails != "close" else [])]
    assert said == [f"--callback {__name__}:Everything.{fails}: ConnectionError: nobody at home; "
                    "the run goes on without it"]  # fmt: skip


def test_what_fails_at_the_start_ends_the_run(tmp_path):
    with pytest.raises(RaysimError, match=r"Everything\.on_start: .*; put that right or leave it out"):
        Guarded(Everything("on_start")).on_start({}, tmp_path)


def test_answers_go_to_the_run(tmp_path):
    """True or a text, and nothing else, ends it; what on_result returns must fit into summary.json."""
    willing = Everything(answers={"on_round": True, "on_result": {"a": 1}})
    assert call_all(Guarded(willing), tmp_path) == (f"--callback {__name__}:Everything ended the run", {"a": 1})
    for answer, reason in (
        (np.True_, f"--callback {__name__}:Everything ended the run"), ("good\nenough", "good enough"),
        ("half \ud83d", "half ?"), (" ", None), (np.False_, None), (1, None), ({"an": "id"}, None),
    ):  # fmt: skip
        assert call_all(Guarded(Everything(answers={"on_round": answer})), tmp_path) == (reason, {})
    for wrong in ({"a": object()}, 7):
        guarded, said = Guarded(Everything(answers={"on_result": wrong})), []
        guarded.complain = said.append
        assert call_all(guarded, tmp_path) == (None, {})
        assert len(said) == 1


def test_hooks_that_are_missing_are_left_out(tmp_path):
    guarded = Guarded(object())
    guarded.complain = pytest.fail
    assert call_all(guarded, tmp_path) == (None, {})


@pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason="tensorboard is not installed: pip install it")
def test_tensorboard_reads_the_figures_and_not_those_of_rounds_done_again(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tracker,) = load_trackers(None, None)
    tracker.complain = pytest.fail
    assert isinstance(tracker.callback, TensorBoard)
    tracker.on_start({}, tmp_path)
    for t, loss in ((1, 3.0), (2, 9.0), (3, 9.0), (2, 2.0), (3, 1.0)):  # the server was lost in between
        tracker.on_round(RoundMetrics(t, loss=loss, terms={"fedprox": t / 4}))
    tracker.on_end({})
    tracker.close()
    read = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in read.Scalars("loss")] == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert [e.value for e in read.Scalars("terms/fedprox")] == [0.25, 0.5, 0.75]


def test_the_example_of_the_documentation(tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "tracking.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "my_tracking.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_tracking", raising=False)  # another test has one too
    try:
        assert main(["run", *SMALL, "--out", str(tmp_path / "run"), "--callback", "my_tracking:Lines"]) == 0
    finally:
        sys.modules.pop("my_tracking", None)
    lines = [json.loads(line) for line in (tmp_path / "run.lines").read_text().splitlines()]
    accuracy = json.loads((tmp_path / "run" / "summary.json").read_text())["final_accuracy"]
    assert len(lines) == 2
    assert lines[-1]["accuracy"] == accuracy


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mlfow", "--track: unknown tracker 'mlfow'; did you mean 'mlflow'?"),
        ("no_such_thing", "--track: unknown tracker 'no_such_thing'; there are mlflow, tensorboard, wandb"),
        ("wandb", "--track wandb needs the package wandb: pip install 'raysim[wandb]'"),
    ],
)
def test_a_tracker_that_is_not_there_is_one_line_before_anything_starts(name, says, tmp_path, capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else find(name))
    assert main(["run", *SMALL, "--out", str(tmp_path / "run"), "--track", name]) == 2
    assert capsys.readouterr().err == f"raysim: {says}\n"
    assert not (tmp_path / "run").exists()


class AfterOne(Callback):
    def on_round(self, metrics):
        return metrics.round == 1


def begun_and_extended(out, tracker):
    """A run that is ended after its first round, and extended: its summary."""
    words = [*SMALL, "--out", str(out), "--track", tracker]
    assert main(["run", *words, "--callback", f"{__name__}:AfterOne"]) == 0
    assert main(["resume", str(out), "--callback", "none"]) == 0
    assert "goes on without it" not in (out / "events.jsonl").read_text()
    return json.loads((out / "summary.json").read_text())


def test_mlflow_has_one_run_of_one_that_was_resumed(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    summary = begun_and_extended(tmp_path / "run", "mlflow")
    assert (tmp_path / "mlflow.db").exists()  # as docs/tracking.md says, with what the extra installs
    client = mlflow.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("raysim").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "run"
    assert found.data.params["method"] == "fedprox"
    assert found.data.tags["model_sha256"] == summary["model_sha256"]
    history = client.get_metric_history(found.info.run_id, "accuracy")
    assert [metric.step for metric in history] == [1, 2]
    assert history[-1].value == summary["final_accuracy"]
    assert [file.path for file in client.list_artifacts(found.info.run_id)] == ["report.html"]


def test_wandb_works_without_an_account(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    begun_and_extended(tmp_path / "run", "wandb")
    token = json.loads((tmp_path / "run" / "config.json").read_text())["run"]
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2  # `wandb sync` puts both under one id
    assert {file.stem for file in files} == {f"run-{token}"}
    assert all(b"train_loss" in file.read_bytes() for file in files)


def test_none_are_made_for_a_run_that_is_finished(tmp_path, monkeypatch):
    assert main(["run", *SMALL, "--out", str(tmp_path / "run")]) == 0
    monkeypatch.setattr(running, "load_trackers", None)  # calling it would raise
    assert main(["run", *SMALL, "--out", str(tmp_path / "run"), "--resume"]) == 0
