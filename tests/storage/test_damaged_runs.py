"""Damaged and foreign files in a run directory: one line that names the file, or a page that says what it lacks."""

import json
from pathlib import Path

import pytest

from raysim.cli import main
from raysim.storage.formats import misfit
from tests.storage import made
from tests.storage.test_mutated_runs import make_run

DAMAGES = {
    "empty": b"", "cut": None, "binary": b"\x89PNG\xff\x00\n", "a list": b"[1, 2]\n", "a number": b"7\n",
    "another program's": b'{"model_type": "bert"}\n', "deep": b"[" * 100_000 + b"\n", "a directory": ...,
}  # fmt: skip


def damage(path: Path, kind: str) -> None:
    content = DAMAGES[kind]
    if content is ...:
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(content if content is not None else path.read_bytes()[: path.stat().st_size // 2 + 3])


def refused(words: list[str], path: Path, capsys) -> None:
    """It ends with exit code 2 and one line that names the file."""
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"raysim: {path}")


@pytest.fixture
def finished(tmp_path) -> Path:
    make_run("finished", tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("name", ["config.json", "summary.json", "metrics.jsonl"])
def test_what_a_report_cannot_do_without_is_named(finished, capsys, name, kind):
    if name == "metrics.jsonl" and kind in ("empty", "cut"):
        pytest.skip("as a kill leaves it")
    damage(finished / name, kind)
    refused(["report", str(finished)], finished / name, capsys)
    refused(["report", str(finished), str(made.finished()), "--out", str(finished / "x")], finished / name, capsys)
    if name != "metrics.jsonl":  # a finished run is not looked at further
        refused(["resume", str(finished), "--in-process"], finished / name, capsys)


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize(
    "name", ["events.jsonl", "timeline.jsonl", "labels.csv", "privacy.json", "features.json", "pairs.png"]
)
def test_what_it_can_do_without_is_left_out_and_the_page_says_so(finished, capsys, name, kind):
    if name.endswith("jsonl") and kind in ("empty", "cut"):
        pytest.skip("as a kill leaves it")
    if name == "privacy.json" and kind == "another program's":
        pytest.skip("values under names are figures too")
    damage(finished / name, kind)
    assert main(["report", str(finished)]) == 0
    assert capsys.readouterr().err == ""
    page = (finished / "report.html").read_text()
    assert f"{finished / name} is damaged or not raysim&#x27;s: " in page
    assert "Test accuracy" in page


@pytest.mark.parametrize("kind", ["a directory", "binary"])
@pytest.mark.parametrize("name", ["events.jsonl", "timeline.jsonl", "metrics.jsonl"])
def test_a_run_that_cannot_go_on_names_the_file(tmp_path, capsys, name, kind):
    run = tmp_path / "run"
    make_run("interrupted", run)
    damage(run / name, kind)
    code = main(["resume", str(run), "--in-process"])
    lines = capsys.readouterr().err.splitlines()
    if name != "metrics.jsonl" and kind == "binary":  # nothing depends on it
        assert (code, lines) == (0, [])
        assert f"{run / name} is damaged" in (run / "report.html").read_text()
    else:
        assert code == (1 if kind == "binary" else 2)  # digests tell that rounds are lost
        assert [line.startswith(f"raysim: {run / name}") for line in lines] == [True]


@pytest.mark.processes
def test_a_grid_names_the_damaged_run(tmp_path, capsys):
    words = ["compare", "--methods", "fedavg", "--train-size", "40", "--test-size", "20", "--clients", "4"]
    words += ["--rounds", "1", "--model", "mlp", "--in-process", "--out", str(tmp_path / "many")]
    assert main(words) == 0
    summary = tmp_path / "many" / "fedavg-seed-0" / "summary.json"
    summary.write_text("[]")
    refused(words, summary, capsys)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"clients": "many"}, "--clients must be a whole number"), ({"partition": 3}, "--partition must be one of"),
        ({"rounds": None}, "--rounds must be"), ({"lr": []}, "--lr must be a number"),
        ({"seed": True}, "--seed must be"),
    ],
)  # fmt: skip
def test_settings_that_no_run_can_have(finished, capsys, settings, told):
    path = finished / "config.json"
    content = json.loads(path.read_text())
    content["settings"] |= settings
    path.write_text(json.dumps(content))
    for words in (["report", str(finished)], ["resume", str(finished), "--in-process"]):
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"raysim: {path}: {told}")


def test_shapes():
    shape = {"round": int, "loss?": (float, None), "spans": {str: [[float]]}}
    assert misfit({"round": 1, "spans": {}, "more": "x"}, shape) == ""
    assert misfit({"round": 1, "loss": None, "spans": {"a": [[1, 2.5]]}}, shape) == ""
    assert misfit({"round": True, "spans": {}}, shape) == "round is not a whole number"
    assert misfit({"spans": {}}, shape) == "it has no 'round'"
    assert misfit({"round": 1, "loss": "x", "spans": {}}, shape) == "loss is not a number"
    assert misfit({"round": 1, "spans": {"a": [["x"]]}}, shape) == "an item of an item of spans.a is not a number"
    assert misfit([], shape) == "it is not an object"


def test_nothing_is_written_to_a_run_that_is_refused(tmp_path, capsys):
    made.copied(made.interrupted(), tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text("[]")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    refused(["resume", str(tmp_path / "run"), "--in-process"], tmp_path / "run" / "config.json", capsys)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
