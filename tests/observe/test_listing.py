"""`raysim show` of runs written by hand."""

import json

import pytest

from raysim.errors import InputError
from raysim.observe.listing import lines, table
from tests.observe.by_hand import written


@pytest.fixture
def runs(tmp_path):
    """A finished one, one that is going on, and one without a round."""
    accuracies = [0.1, 0.2, 0.5, 0.3, 0.4, 0.4, 0.2, 0.3]
    whole = [{"round": t, "accuracy": value, "seconds": 2.0} for t, value in enumerate(accuracies, 1)]
    summary = {
        "method": "fedavg", "final_accuracy": 0.3, "best_accuracy": 0.5, "rounds": 8, "model_sha256": "0" * 64,
        "seconds": 61.0,
    }  # fmt: skip
    written(tmp_path / "a", whole, {"method": "fedavg", "rounds": 8}, summary=summary)
    written(tmp_path / "b", [{"round": 1, "accuracy": 0.6, "seconds": 2.0}, {"round": 2, "seconds": 1.5}], {"lr": 0.5})
    written(tmp_path / "c", [])
    return tmp_path


def test_figures_of_each_run(runs):
    found = json.loads(table(lines([runs])).json())
    assert [run.pop("run") for run in found] == [str(runs / name) for name in "bac"]  # the most accurate first
    assert found == [
        {"method": "fedprox", "lr": 0.5, "rounds": 2, "finished": False, "final_accuracy": 0.6, "best_accuracy": 0.6,
         "late_accuracy": 0.6, "seconds": 3.5},
        {"method": "fedavg", "lr": 0.01, "rounds": 8, "finished": True, "final_accuracy": 0.3, "best_accuracy": 0.5,
         "late_accuracy": 0.25, "seconds": 61.0},
        {"method": "fedprox", "lr": 0.01, "rounds": 0, "finished": False, "final_accuracy": None,
         "best_accuracy": None, "late_accuracy": None, "seconds": 0},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sort", "order"),
    [("final", "bac"), ("best", "bac"), ("late", "bac"), ("seconds", "cba"), ("run", "abc"), ("lr", "acb"),
     ("--method", "abc")],
)  # fmt: skip
def test_orders(runs, sort, order):
    assert [line.run[-1] for line in lines([runs], sort)] == list(order)
    assert [line.run[-1] for line in lines([runs], sort, top=2)] == list(order[:2])


def test_an_order_that_there_is_not(runs):
    with pytest.raises(InputError, match="cannot be sorted by 'zzz'; there are final, best, late, seconds, run"):
        lines([runs], "zzz")


def test_forms(runs):
    found = table(lines([runs / "a", runs / "b"]))
    text = found.text().splitlines()
    assert [line.split() for line in text[1:]] == [
        [str(runs / "b"), "fedprox", "0.5", "2", "of", "3", "60.00", "60.00", "60.00", "4s"],
        [str(runs / "a"), "fedavg", "0.01", "8", "30.00", "50.00", "25.00", "1m01s"],
    ]
    assert len({len(line) for line in text}) == 1  # the last column ends where it does above
    assert found.latex().splitlines()[0] == r"\begin{tabular}{lllrrrrr}"  # of a run, its method and lr; five figures
    assert table(lines([runs / "c"])).csv().splitlines() == [
        "run,method,dataset,rounds,finished,final_accuracy,best_accuracy,late_accuracy,seconds",
        f"{runs / 'c'},fedprox,cifar10,0,False,,,,0",
    ]
