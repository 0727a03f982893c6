"""`raysim search`: what is drawn, how a search that was killed goes on, and that its trials are ordinary runs."""

import importlib
import json
import os
import subprocess
import sys
import time

import pytest
from optuna.distributions import FloatDistribution

from raysim.cli import main
from raysim.errors import InputError
from raysim.experiments import grid
from raysim.experiments.search import from_lists, space
from tests.faults.harness import ROOT

TINY = [
    "--train-size", "200", "--test-size", "100", "--clients", "6", "--active", "3", "--model", "mlp", "--image-size",
    "16", "--privacy", "0", "--in-process",
]  # fmt: skip
OVER = ["--over", "lr=loguniform:1e-4,1e-1", "optimizer=choice:sgd,adam", "--rounds", "8"]


def planned(*words):
    return from_lists(*grid.read([*words]))


def opened(folder, *words):
    folder.mkdir(parents=True, exist_ok=True)
    search = planned(*words, "--out", str(folder))
    search.open()
    return search


def point(run):
    return run.config.lr, run.config.optimizer


def end(search, run, accuracy):
    """As if the run had ended with this accuracy."""
    run.folder.mkdir()
    content = {"method": "fedavg", "final_accuracy": accuracy, "best_accuracy": accuracy, "rounds": 8}
    (run.folder / "summary.json").write_text(json.dumps(content | {"model_sha256": "", "seconds": 1.0}))
    search.finished(run)


# -- what is drawn -----------------------------------------------------------------------------------------------------


def drawn(folder, key, text):
    search = opened(folder / key / text.partition(":")[0], "--method", "fedprox", "--over", f"{key}={text}")
    values = []
    while len(values) < 30 and (run := search.draw()):
        values.append(run.config.parts[0].mu if key == "fedprox.mu" else run.config.batch_size)
    return values


def test_the_kinds_of_spaces(tmp_path):
    assert all(0 <= value <= 2 for value in drawn(tmp_path, "fedprox.mu", "uniform:0,2"))
    small = [value < 1e-2 for value in drawn(tmp_path, "fedprox.mu", "loguniform:1e-4,1")]
    assert 8 < sum(small) < 22  # half of the logarithmic range
    assert {*drawn(tmp_path, "batch_size", "int:1,3")} == {1, 2, 3}
    assert {*drawn(tmp_path, "batch_size", "choice:16,32")} == {16, 32}
    assert sum(value <= 10 for value in drawn(tmp_path, "batch_size", "logint:1,1000")) >= 5


def test_a_number_is_drawn_as_it_is_printed(tmp_path):
    assert all(value == float(f"{value:.4g}") for value in drawn(tmp_path, "fedprox.mu", "loguniform:1e-6,1"))


@pytest.mark.parametrize(
    "text",
    [
        "", "0,1", "normal:0,1", "uniform:", "uniform:1", "uniform:0,1,2", "int:0.5,2", "int:a,b", "choice:",
        "uniform:2,1", "loguniform:0,1", "logint:0,3",
    ],
)  # fmt: skip
def test_what_is_no_space_is_one_line(text):
    with pytest.raises(InputError, match="is no space to draw from; write key=KIND:VALUES, as in uniform:0,1, "):
        space(text, "key")


def test_a_distribution_of_optuna_is_a_space():
    given = FloatDistribution(0.1, 0.9, step=0.1)
    assert space(given, "key") is given


def test_the_first_trials_are_the_same_however_many_there_are(tmp_path):
    few = opened(tmp_path / "few", *OVER, "--trials", "4")
    many = opened(tmp_path / "many", *OVER, "--trials", "9")
    first, all_of_them = [point(few.draw()) for _ in range(4)], [point(many.draw()) for _ in range(9)]
    assert all_of_them[:4] == first
    assert len({*all_of_them}) == 9
    other = opened(tmp_path / "other", *OVER, "--trials", "4", "--seed", "1")
    assert [point(other.draw()) for _ in range(4)] != first


def test_more_trials_go_on_in_the_same_folder_and_other_spaces_do_not():
    assert planned(*OVER, "--trials", "4").grid.folder == planned(*OVER, "--trials", "9").grid.folder
    other = [word.replace("loguniform", "uniform") for word in OVER]
    assert planned(*OVER).grid.folder != planned(*other).grid.folder


def test_as_many_trials_as_there_are_points(tmp_path):
    words = ["--over", "optimizer=choice:sgd,adam", "batch-size=int:3,5", "--trials", "50"]
    search = opened(tmp_path, *words)
    runs = [*iter(search.draw, None)]
    assert len({(run.config.optimizer, run.config.batch_size) for run in runs}) == len(runs) == 6
    assert search.number == 6


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--trials", "3"], "search: say what to draw with --over, e.g."),
        (["--over", "lr", "--trials", "3"], "--over: 'lr' is not written key=KIND:VALUES"),
        ([*OVER, "--seeds", "0", "1"], "search takes no --seeds; its trials differ in what --over draws"),
        ([*OVER, "--trials", "0"], "search: --trials must be at least 1, not 0"),
        ([*OVER, "--scheduler", "median"], "search: --scheduler must be one of asha, none, not 'median'"),
        ([*OVER, "--sampler", "grid"], "search: --sampler must be one of random, tpe, not 'grid'"),
        ([*OVER, "--grace", "9"], "search: --grace 9 is more than --rounds 8"),
        ([*OVER, "--scheduler", "none", "--grace", "2"], "--grace and --reduction belong to --scheduler asha"),
        ([*OVER, "--eval-every", "0"], "--scheduler asha compares accuracies on the way; give --eval-every 1"),
        ([*OVER, "--lr", "0.1"], "search: --lr is what varies here; leave it out"),
        (["--over", "no.such=uniform:0,1"], "unknown setting --no.such"),
        (["--over", "lr=uniform:1,inf"], "--lr must be a number, not 'inf'"),
        (["--over", "batch-size=int:0,8"], "--batch-size must be at least 1, not 0"),
        (["--over", "optimizer=choice:sgd,adams"], "--optimizer must be one of"),
    ],
)
def test_wrong_words_are_one_line(words, says):
    with pytest.raises(InputError) as caught:
        planned(*words)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_optuna_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "raysim.experiments.search")
    monkeypatch.delattr(importlib.import_module("raysim.experiments"), "search")
    assert main(["search", *OVER]) == 2
    assert capsys.readouterr().err == "raysim: search needs the package optuna; install it: pip install optuna\n"


# -- after a kill ------------------------------------------------------------------------------------------------------


def test_a_search_that_was_killed_makes_the_same_decisions(tmp_path):
    words = [*OVER, "--trials", "3", "--grace", "2", "--reduction", "2"]
    search = opened(tmp_path, *words)
    first, second, third = (search.draw() for _ in range(3))
    assert [search.judge(first, 1, 0.1), search.judge(first, 2, 0.5), search.judge(second, 2, 0.6)] == ["", "", ""]
    why = search.judge(third, 2, 0.4)
    assert why == "ASHA ended it: other trials were better after 2 rounds"
    with (tmp_path / "search.journal").open("a") as file:
        file.write('{"trial": "lr')  # cut by the kill
    again = planned(*words, "--out", str(tmp_path))
    assert again.open() == [first, second, third]
    assert again.judge(third, 1, 0.9) == why  # it was killed before it took note, and does a round again
    assert again.judge(first, 2, 0.5) == ""  # asked a second time
    assert again.judge(second, 4, 0.6) == ""
    assert again.judge(first, 4, 0.1).endswith("after 4 rounds")
    assert again.judge(second, 8, 0.0) == ""  # the last round ends a run anyway


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_search_that_was_killed_draws_the_same_trials(tmp_path, sampler):
    """One at a time; TPE learns from the eleventh trial on."""

    def trials(folder, kills):
        search, found = opened(folder, *OVER, "--sampler", sampler), []
        for number in range(14):
            found.append(run := search.draw())
            if number in kills:
                search = opened(folder, *OVER, "--sampler", sampler)
            end(search, run, 1 - run.config.lr)
            if number + 100 in kills:
                search = opened(folder, *OVER, "--sampler", sampler)
        return [*map(point, found)]

    whole = trials(tmp_path / "whole", ())
    assert trials(tmp_path / "killed", (0, 3, 104, 11, 112)) == whole


def test_tpe_learns(tmp_path):
    ends = [opened(tmp_path / each, *OVER, "--sampler", "tpe") for each in ("low", "high")]
    for search, sign in zip(ends, (-1, 1), strict=True):
        for _ in range(12):
            run = search.draw()
            end(search, run, 0.5 + sign * run.config.lr)
    low, high = (search.draw().config.lr for search in ends)
    assert low < high


def test_a_trial_that_a_kill_has_cut_is_drawn_again(tmp_path):
    whole = opened(tmp_path / "whole", *OVER)
    expected = [point(whole.draw()) for _ in range(3)]
    search = opened(tmp_path / "cut", *OVER)
    search.draw()
    search.draw()
    journal = tmp_path / "cut" / "search.journal"
    *lines, last = journal.read_bytes().splitlines(keepends=True)
    assert b'"param_name": "optimizer"' in last
    journal.write_bytes(b"".join(lines) + last[:30])
    again = opened(tmp_path / "cut", *OVER)
    assert [point(run) for run in again.trials] == expected[:1]
    assert [point(again.draw()) for _ in range(2)] == expected[1:]


def test_a_result_that_the_search_did_not_hear_of_is_told(tmp_path):
    search = opened(tmp_path, *OVER)
    first, second = search.draw(), search.draw()
    end(search, first, 0.4)
    search.finished = lambda run: None
    end(search, second, 0.6)
    again = opened(tmp_path, *OVER)
    assert again.best() == second
    assert [trial.value for trial in again.study.trials] == [0.4, 0.6]


def test_the_best_is_none_that_was_ended(tmp_path):
    search = opened(tmp_path, *OVER, "--grace", "1", "--reduction", "2")
    first, second = search.draw(), search.draw()
    search.judge(first, 1, 0.5)
    assert search.judge(second, 1, 0.4)
    end(search, second, 0.9)
    end(search, first, 0.3)
    assert search.best() == first


def test_settings_that_no_trial_can_have_end_the_search_in_one_line_and_are_not_drawn_again(tmp_path, monkeypatch):
    search = opened(tmp_path, *OVER)
    with monkeypatch.context() as patch:
        patch.setattr(grid, "resolve", lambda layers: (_ for _ in ()).throw(InputError("lr and optimizer do not fit")))
        with pytest.raises(InputError, match="do not fit"):
            search.draw()
    again = opened(tmp_path, *OVER)
    assert again.open() == []
    assert again.draw()


@pytest.mark.parametrize("content", [b"{}\n", b"[]\n", b"no JSON\n", b'{"op_code": 4, "study_id": 3}\n', b"\xff\n"])
def test_a_damaged_journal_is_one_line(tmp_path, content):
    (tmp_path / "search.journal").write_bytes(content)
    with pytest.raises(InputError, match=r"search.journal is damaged or not raysim's: .*restore it") as caught:
        opened(tmp_path, *OVER)
    assert "\n" not in str(caught.value)


def raysim(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "raysim", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_eight_trials_killed_with_9_go_on_and_the_best_alone_has_its_hash(tmp_path, sampler):
    out = tmp_path / "search"
    words = ["search", *OVER, *TINY, "--trials", "8", "--grace", "2", "--reduction", "2", "--out", str(out)]
    words += ["--sampler", sampler]
    process = raysim(*words)
    journal = out / "search.journal"
    while not journal.exists() or journal.read_text().count("intermediate_value") < 5:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.kill()
    process.wait()
    # What it had started ends by itself, as if interrupted; then the same command goes on.
    for _ in range(600):
        again = raysim(*words)
        said, complained = again.communicate(timeout=900)
        if "is in use by another command" not in complained:
            break
        time.sleep(1)
    assert again.returncode == 0, complained
    search = planned(*words[1:])
    trials = search.open()
    assert len(trials) == 8
    assert all(run.finished for run in trials)
    summaries = [json.loads((run.folder / "summary.json").read_text()) for run in trials]
    ended = [summary for summary in summaries if summary["stopped"]]
    assert 2 <= len(ended) < 8
    assert all(summary["rounds"] in (2, 4) for summary in ended)
    best = search.best()
    assert f"best: {best.row}:" in said
    assert (out / "table.md").read_text() in said
    assert (out / "report.html").exists()
    command = said[said.index("raysim run ") :].split()[2:]
    assert main(["run", *command, "--out", str(tmp_path / "alone")]) == 0
    alone = json.loads((tmp_path / "alone" / "summary.json").read_text())
    assert alone["model_sha256"] == json.loads((best.folder / "summary.json").read_text())["model_sha256"]


@pytest.mark.slow
def test_from_python_with_a_distribution_of_optuna(tmp_path):
    import raysim as library

    small = {"train_size": 100, "test_size": 50, "clients": 4, "model": "mlp", "image_size": 8, "privacy": 0}
    found = library.search(
        {"lr": FloatDistribution(1e-3, 1e-1, log=True), "fedprox.mu": "uniform:0,1"}, trials=2, scheduler="none",
        rounds=1, method="fedprox", in_process=True, out=tmp_path / "search", progress=False, **small,
    )  # fmt: skip
    assert len(found.runs) == 2
    assert found.best.accuracy == max(run.accuracy for run in found.runs)
    assert (tmp_path / "search" / "report.html").exists()


def test_a_trial_ends_as_if_interrupted_when_the_search_is_gone(tmp_path):
    """Both of its pipes are closed at the other end."""
    (questions, asking), (answers, answering) = os.pipe(), os.pipe()
    os.close(answering)
    words = [sys.executable, "-m", "raysim", "run", *TINY, "--rounds", "5", "--out", str(tmp_path / "run")]
    environment = os.environ | {"RAYSIM_SEARCH": f"{asking},{answers}"}
    done = subprocess.run(
        words, cwd=ROOT, env=environment, pass_fds=[asking, answers], capture_output=True, text=True, check=False
    )
    os.close(questions)
    assert done.returncode == 130, done.stderr
    assert "interrupted" in done.stderr
    assert not (tmp_path / "run" / "summary.json").exists()
    assert main(["resume", str(tmp_path / "run")]) == 0
