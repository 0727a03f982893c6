"""Every example is run, made small."""

import runpy
import sys
from pathlib import Path

import pytest

import raysim

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))
SMALL = {"clients": 4, "active": 2, "rounds": 2, "privacy": 0, "in_process": True, "progress": False}


@pytest.fixture
def small(monkeypatch, tmp_path) -> list[raysim.Run]:
    """Makes every run of an example small; the runs, as they come."""
    runs: list[raysim.Run] = []
    real = raysim.run

    def run(**settings):
        sizes = {"train_size": 60, "test_size": 20} if "dataset" not in settings else {"train_size": 200}
        runs.append(real(**settings | SMALL | sizes | {"out": tmp_path / f"run{len(runs)}"}))
        return runs[-1]

    monkeypatch.setattr(raysim, "run", run)
    return runs


def test_there_are_some():
    assert {"own_model.py", "own_method.py", "own_data.py"} <= {*SCRIPTS}


@pytest.mark.parametrize("name", ["own_model.py", "own_method.py", "own_data.py"])
def test_an_example_runs(name, small, capsys):
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert small
    assert f"{100 * small[0].accuracy:.1f} %" in capsys.readouterr().out


def test_the_model_of_the_example_comes_back(small):
    runpy.run_path(str(EXAMPLES / "own_model.py"), run_name="__main__")
    assert type(small[0].model()).__name__ == "Net"


@pytest.mark.processes
def test_the_search_of_the_example_finds_a_best_trial(monkeypatch, tmp_path, capsys):
    pytest.importorskip("ray.tune")
    real = raysim.search

    def search(**settings):
        small = {key: value for key, value in SMALL.items() if key != "rounds"} | {"rounds": 1, "trials": 2}
        return real(**settings | small | {"train_size": 60, "test_size": 20, "out": tmp_path / "search"})

    monkeypatch.setattr(raysim, "search", search)
    runpy.run_path(str(EXAMPLES / "search.py"), run_name="__main__")
    assert "best " in capsys.readouterr().out.splitlines()[-1]


def test_the_data_of_the_example_is_learnt(tmp_path):
    sys.path.insert(0, str(ROOT))
    try:
        settings = {"dataset": "examples.own_data:load", "partition": "column", "client_column": "writer"}
        run = raysim.run(
            **settings, clients=12, rounds=6, model="small-cnn", lr=0.02, privacy=0, in_process=True, progress=False,
            out=tmp_path / "run",
        )  # fmt: skip
        assert run.accuracy > 0.5  # four angles
    finally:
        sys.path.remove(str(ROOT))


@pytest.mark.slow
def test_the_notebook_runs_and_ends_in_the_hash_of_the_command_line(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert "<iframe srcdoc=" in code[1].outputs[-1].data["text/html"]
    words = ["--method", "fedprox", "--fedprox.mu", "0.01", "--model", "small-cnn", "--clients", "10", "--active", "4"]
    words += ["--rounds", "3", "--train-size", "600", "--test-size", "200", "--partition", "classes", "--in-process"]
    from raysim.cli import main

    assert main(["run", *words, "--out", str(tmp_path / "command")]) == 0
    assert raysim.open_run(tmp_path / "command").summary["model_sha256"] in code[2].outputs[-1].data["text/plain"]
    assert "tensor" in code[4].outputs[-1].data["text/plain"]  # the class of the notebook has trained, and predicts
