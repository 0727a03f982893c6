"""Every `raysim …` of the documentation is run, made small; those of many runs only in the slow suite.

Benchmarks are run by tests/benchmarks, what submits jobs and starts clusters by tests/cluster.
"""

import re
import shlex
from pathlib import Path

import pytest

from raysim.cli import main
from raysim.experiments import grid, search
from tests.data.made import encoded, pixels, write_folder, write_parquet

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "cluster" / "README.md"]
COMMAND = re.compile(r"^ {4,}((?:python -m )?raysim .*)$|`((?:python -m )?raysim [^`]*)`", re.MULTILINE)
RUN = {
    "--rounds": "1", "--train-size": "60", "--test-size": "20", "--clients": "4", "--active": "2", "--hfmds.steps": "1",
    "--in-process": "true", "--local-epochs": "1",
}  # fmt: skip
MANY = ("compare", "search", "sweep")


def documented() -> dict[str, list[str]]:
    """Command -> its words; what is left open (…, NAME) is not one."""
    pages = [page.read_text().replace("\\\n", " ") for page in PAGES]
    found = sorted({block or inline for page in pages for block, inline in COMMAND.findall(page)})
    split = {text: shlex.split(text, comments=True) for text in found if "…" not in text}
    return {text: words[words.index("raysim") + 1 :] for text, words in split.items()}


def smaller(words: list[str], folder: Path) -> list[str]:
    """The command on data made for it, with settings that take seconds."""
    places = {"path/to/data": "data", "DIR": "data", "path/to/folder": "folder", "RUN_DIR": "run"}
    words = [str(folder / places[word]) if word in places else word for word in words]
    if words[0] == "resume" and "--rounds" in words:
        words[words.index("--rounds") + 1] = "2"
    if words[0] not in ("run", *MANY) or "--help" in words:
        return words
    few = {"search": {"--trials": "2"}, "run": {}}
    settings = RUN | few.get(words[0], {"--seeds": "0"})
    if "hfmds" not in " ".join(words):
        settings = {key: value for key, value in settings.items() if key != "--hfmds.steps"}
    kept, drop = [], False
    for word in words:
        drop = word in settings if word.startswith("--") else drop
        if not drop:
            kept.append(word)
    return [*kept, *(word for pair in settings.items() for word in pair)]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the data, the run and the module that commands speak of."""
    for name, channels, size in (("cifar10", 3, 32), ("mnist", 1, 28), ("fashion_mnist", 1, 28)):
        images = [encoded(x) for x in pixels(60, channels, size)]
        for split in ("train", "test"):
            write_parquet(tmp_path / f"data/{name}/{split}.parquet", images, [i % 10 for i in range(60)])
    write_folder(tmp_path / "folder/train", {"cat": 80, "dog": 80})
    (tmp_path / "my_tracking.py").write_text("from raysim.observe.trackers import Callback as Lines\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_are_some():
    assert {words[0] for words in documented().values()} >= {"run", "resume", "report", "plan", "methods", *MANY}


def cases() -> list:
    """The commands that are tried whole; two of them look at the Ray there is."""
    alone = {text: words[0] for text, words in documented().items() if words[0] not in MANY}
    marks = {"plan": pytest.mark.processes, "doctor": pytest.mark.processes}
    return [pytest.param(text, marks=marks.get(command, ())) for text, command in alone.items()]


@pytest.mark.parametrize("command", cases())
def test_it_runs(command, place):
    words = documented()[command]
    if "--track" in words:
        pytest.importorskip(words[words.index("--track") + 1])
    if "RUN_DIR" in words:
        assert main(smaller(["run", "--out", "RUN_DIR"], place)) == 0
    assert main(smaller(words, place)) == 0


@pytest.mark.parametrize("command", [text for text, words in documented().items() if words[0] in MANY])
def test_many_runs_can_be_configured(command, place):
    kind, *words = smaller(documented()[command], place)
    if kind == "search":
        assert search.from_lists(*grid.read(words)).examples
    else:
        assert grid.from_words(kind, words).runs


@pytest.mark.slow
@pytest.mark.parametrize("command", [text for text, words in documented().items() if words[0] in MANY])
def test_many_runs_run(command, place):
    assert main(smaller(documented()[command], place)) == 0
