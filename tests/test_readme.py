"""What the README shows is run."""

import re
from pathlib import Path

import pytest

import raysim
from raysim.config import from_command_line, load_layers, resolve
from tests.simulate import blobs, simulate

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SMALL = {"train_size": 60, "test_size": 20, "rounds": 1, "privacy": 0, "in_process": True, "progress": False}


def test_it_opens_with_the_two_commands():
    assert re.findall(r"^    (.*?) +#", README, re.MULTILINE)[:2] == ["make demo", "make test"]


def test_its_lines_of_python_run(monkeypatch, tmp_path, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    real = raysim.run
    monkeypatch.setattr(raysim, "run", lambda **settings: real(**settings | SMALL, out=tmp_path / "run"))
    names = {"__name__": "__main__"}
    exec(code, names)
    assert str(names["run"].accuracy) in capsys.readouterr().out
    assert len(names["history"]) == 1
    assert callable(names["trained"])


def test_the_example_method_composes_with_another_and_learns(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    settings = {"partition": "classes", "classes_per_client": 2, "rounds": 4, "active": 5}
    result = simulate(blobs(), method="examples.own_method+fedprox", **{"own_method.tau": 0.8}, **settings)
    assert result.history[0]["terms"].keys() == {"fedprox"}
    assert result.history[-1]["terms"].keys() == {"own_method", "fedprox"}
    assert result.history[-1]["accuracy"] > 0.5  # five classes


def test_every_flag_the_readme_shows_exists(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    commands = re.findall(r"^ +raysim run (.*?)(?:#.*)?$", README, re.MULTILINE)
    assert len(commands) >= 4
    for words in commands:
        if "--help" not in words:
            resolve(load_layers(from_command_line(words.split()), {}))


def test_the_figures_are_those_of_the_benchmarks():
    measured = (ROOT / "docs" / "benchmarks.md").read_text()
    table = README[README.index("## How it compares") : README.index("## Methods")]
    rows = [re.findall(r"(?<=\| )\d+\.\d\d(?= \|)", line) for line in table.splitlines()]
    figures = [figure for row in rows for figure in row]
    assert len(figures) == 12
    for figure in figures:
        assert f"| {figure} (" in measured, figure


@pytest.mark.parametrize("picture", re.findall(r"!\[.*?\]\((.*?)\)", README))
def test_pictures_are_there(picture):
    assert (ROOT / picture).stat().st_size > 1000
