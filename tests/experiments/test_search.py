"""`raysim search`: what is drawn, how a search that was killed goes on, and that its trials are ordinary runs."""

import json
import os
import subprocess
import sys
import time

import pytest

from raysim.cli import main
from raysim.errors import InputError
from raysim.experiments import grid
from tests.faults.harness import ROOT

pytest.importorskip("pandas")

from raysim.experiments.search import Judge, best_of, from_lists

TINY = [
    "--train-size", "200", "--test-size", "100", "--clients", "6", "--active", "3", "--model", "mlp", "--image-size",
    "16", "--privacy", "0", "--in-process",
]  # fmt: skip
OVER = ["--over", "lr=loguniform:1e-4,1e-1", "optimizer=choice:sgd,adam", "--rounds", "8"]


def planned(*words):
    return from_lists(*grid.read([*words]))


def points(search):
    return [(run.config.lr, run.config.optimizer) for run in search.grid.runs]


def test_the_first_trials_are_the_same_however_many_there_are():
    few, many = points(planned(*OVER, "--trials", "4")), points(planned(*OVER, "--trials", "9"))
    assert len(few) == 4
    assert many[:4] == few
    assert len({*many}) == 9
    assert points(planned(*OVER, "--trials", "4", "--seed", "1")) != few


def test_as_many_trials_as_there_are_points():
    assert len(planned("--over", "optimizer=choice:sgd,adam", "batch-size=int:3,5", "--trials", "50").grid.runs) == 6


def test_the_rungs():
    assert planned(*OVER).asha == (1, 3)
    assert planned(*OVER, "--grace", "2", "--reduction", "4").asha == (2, 4)
    assert planned(*OVER, "--scheduler", "none").asha is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--trials", "3"], "search: say what to draw with --over, e.g."),
        (["--over", "lr", "--trials", "3"], "--over: 'lr' is not written key=KIND:VALUES"),
        ([*OVER, "--seeds", "0", "1"], "search takes no --seeds; its trials differ in what --over draws"),
        ([*OVER, "--trials", "0"], "search: --trials must be a whole number from 1 to 10000, not '0'"),
        ([*OVER, "--scheduler", "median"], "search: --scheduler must be asha or none, not 'median'"),
        ([*OVER, "--scheduler", "none", "--grace", "2"], "--grace and --reduction belong to --scheduler asha"),
        ([*OVER, "--grace", "9"], "search: --grace must be a whole number from 1 to 8, not '9'"),
        ([*OVER, "--eval-every", "0"], "--scheduler asha compares accuracies on the way; give --eval-every 1"),
        ([*OVER, "--lr", "0.1"], "search: --lr is what varies here; leave it out"),
        (["--over", "no.such=uniform:0,1"], "unknown setting --no.such"),
    ],
)
def test_wrong_words_are_one_line(words, says):
    with pytest.raises(InputError) as caught:
        planned(*words)
    assert says in str(caught.value)


def test_a_search_that_was_killed_has_the_same_rungs_again(tmp_path):
    search = planned(*OVER, "--trials", "3", "--grace", "2", "--reduction", "2", "--out", str(tmp_path))
    first, second, third = search.grid.runs
    judge = Judge(search)
    assert [judge(first, 2, 0.5), judge(second, 2, 0.6)] == ["", ""]
    why = judge(third, 2, 0.4)
    assert why == "ASHA ended it: other trials were better after 2 rounds"
    with (tmp_path / "search.jsonl").open("a") as file:
        file.write('{"trial": "lr')  # cut by the kill
    again = Judge(search)
    assert again(third, 1, 0.9) == why  # it was killed before it took note, and does a round again
    assert again(first, 2, 0.5) == ""  # asked a second time
    assert again(second, 4, 0.6) == ""
    assert again(first, 4, 0.1).endswith("after 4 rounds")
    assert again(second, 8, 0.0) == ""  # the last round ends a run anyway


def raysim(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "raysim", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


@pytest.mark.slow
def test_eight_trials_killed_with_9_go_on_and_the_best_alone_has_its_hash(tmp_path):
    out = tmp_path / "search"
    words = ["search", *OVER, *TINY, "--trials", "8", "--grace", "2", "--reduction", "2", "--out", str(out)]
    process = raysim(*words)
    while not (out / "search.jsonl").exists() or (out / "search.jsonl").read_text().count("\n") < 5:
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
    assert all(run.finished for run in search.grid.runs)
    summaries = [json.loads((run.folder / "summary.json").read_text()) for run in search.grid.runs]
    ended = [summary for summary in summaries if summary["stopped"]]
    assert 2 <= len(ended) < 8
    assert all(summary["rounds"] in (2, 4) for summary in ended)
    best = best_of(search.grid)
    assert best.folder.joinpath("summary.json").exists()
    assert f"best: {best.row}:" in said
    assert (out / "table.md").read_text() in said
    assert (out / "report.html").exists()
    command = said[said.index("raysim run ") :].split()[2:]
    assert main(["run", *command, "--out", str(tmp_path / "alone")]) == 0
    alone = json.loads((tmp_path / "alone" / "summary.json").read_text())
    assert alone["model_sha256"] == json.loads((best.folder / "summary.json").read_text())["model_sha256"]


@pytest.mark.slow
def test_from_python_with_spaces_of_tunes_own(tmp_path):
    from ray import tune

    import raysim as library

    small = {"train_size": 100, "test_size": 50, "clients": 4, "model": "mlp", "image_size": 8, "privacy": 0}
    found = library.search(
        {"lr": tune.loguniform(1e-3, 1e-1), "fedprox.mu": "uniform:0,1"}, trials=2, scheduler="none", rounds=1,
        method="fedprox", in_process=True, out=tmp_path / "search", progress=False, **small,
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
