"""Formats: run directories of raysim 0.1.0 stay readable and resumable, and those of a newer format are refused."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from raysim.cli import main
from raysim.config import from_record, resolve
from raysim.engine.round_metrics import RoundMetrics
from raysim.errors import InputError, RaysimError
from raysim.observe.report import write_comparison, write_report
from raysim.storage import formats
from raysim.storage.checkpoints import Checkpoints
from raysim.storage.run_directory import RunDirectory, run_directory
from raysim.storage.run_reader import read_run
from tests.golden import TOLERANCE, device

OLD = Path(__file__).parent / "written_by_0.1.0"


def manifest_of(folder: Path, **changes: object) -> dict:
    """Rewrite the newest manifest of a run directory with these changes, and return its content."""
    path = max((folder / "checkpoints").glob("round-*.json"))
    content = json.loads(path.read_text().partition("\n")[2]) | changes
    text = json.dumps(content)
    path.write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}\n")
    return content


def identity_of(folder: Path) -> dict:
    return json.loads(max((folder / "checkpoints").glob("round-*.json")).read_text().partition("\n")[2])["identity"]


@pytest.fixture
def interrupted(tmp_path) -> Path:
    """The interrupted run, as if it had been written on the device of this test, of which less was recorded then."""
    folder = tmp_path / "interrupted"
    shutil.copytree(OLD / "interrupted", folder)
    identity = identity_of(folder)
    here = {key: value for key, value in device().items() if key in identity["device"]}
    manifest_of(folder, identity=identity | {"device": here})
    return folder


# -- raysim 0.1.0 ------------------------------------------------------------------------------------------------------


def test_its_rounds_are_read_with_everything_they_have():
    run = read_run(OLD / "finished")
    assert [metrics.round for metrics in run.history] == [1, 2, 3, 4]
    lines = run.lines("metrics.jsonl")
    assert [dict(metrics.to_line()) for metrics in run.history] == [{"format": 1} | line for line in lines]
    assert run.history[1].reported["hfmds.psnr"] == lines[1]["hfmds.psnr"]


def test_its_report_can_be_written(tmp_path):
    page = write_report(OLD / "finished", tmp_path / "report.html").read_text()
    for text in ("hfmds+fedpa on shapes", "PSNR over rounds", "Actors at work", "Fidelity loss", "3.33 %"):
        assert text in page
    assert "Not finished: 3 of 4 rounds" in write_report(OLD / "interrupted", tmp_path / "other.html").read_text()


def test_it_can_be_compared_with_itself(tmp_path, capsys):
    """The same configuration, so both are one group, also beside a run that records today's settings."""
    again = tmp_path / "again"
    shutil.copytree(OLD / "finished", again)
    config = json.loads((again / "config.json").read_text())
    config["settings"] = from_record(config["settings"], "config.json") | {"seed": 2}
    (again / "config.json").write_text(json.dumps({"format": 1} | config))
    page = write_comparison([OLD / "finished", again], tmp_path / "comparison.html").read_text()
    assert "2 runs, 1 configurations, 1 setting" in page
    assert main(["report", str(OLD / "finished"), str(again), "--out", str(tmp_path / "cli.html")]) == 0
    assert (tmp_path / "cli.html").read_text() == page


def test_its_checkpoint_loads(interrupted):
    found = Checkpoints(interrupted / "checkpoints", identity_of(interrupted)).load(pytest.fail)
    assert found is not None
    assert (found.round, found.begun, list(found.shared)) == (2, None, ["hfmds"])
    history = RunDirectory(interrupted, resume=True).keep(found.round, found.metrics)
    assert [metrics.round for metrics in history] == [1, 2]


def test_a_run_resumed_from_it_ends_as_it_would_have(interrupted):
    assert main(["resume", str(interrupted), "--in-process"]) == 0
    run = read_run(interrupted)
    assert [metrics.round for metrics in run.history] == [1, 2, 3, 4]
    assert ["format" in line for line in run.lines("metrics.jsonl")] == [False, False, True, True]
    # Since then real and shared images go through the network together, which changes the last bits (changelog).
    for now, then in zip(run.history, read_run(OLD / "finished").history, strict=True):
        assert now.accuracy == pytest.approx(then.accuracy, abs=1.01 / 30)  # one of its test images
        assert now.loss == pytest.approx(then.loss, rel=TOLERANCE)
        assert now.terms == pytest.approx(then.terms, rel=TOLERANCE)


@pytest.mark.parametrize("key", ["cpu", "loops"])
def test_it_is_resumed_on_its_kind_of_device_only(interrupted, key):
    here, of_run = device(), identity_of(interrupted)
    manifest_of(interrupted, identity=of_run | {"device": here})
    assert Checkpoints(interrupted / "checkpoints", of_run | {"device": here}).load().round == 2
    with pytest.raises(RaysimError, match="was made with another device"):
        Checkpoints(interrupted / "checkpoints", of_run | {"device": here | {key: "other"}}).load()


# -- settings that are new ---------------------------------------------------------------------------------------------


def without(folder: Path, *names: str) -> None:
    """Make the directory one of a raysim that did not have these settings."""
    config = json.loads((folder / "config.json").read_text())
    config["settings"] = {key: value for key, value in config["settings"].items() if key not in names}
    (folder / "config.json").write_text(json.dumps(config))
    identity = identity_of(folder)
    identity["settings"] = {key: value for key, value in identity["settings"].items() if key not in names}
    manifest_of(folder, identity=identity)


def resumed(folder: Path, **changes: object):
    settings = from_record(json.loads((folder / "config.json").read_text())["settings"], "config.json")
    return resolve([("test", settings | {"out": str(folder), "resume": True} | changes)])


def test_a_setting_that_the_run_did_not_have_counts_as_its_default(interrupted):
    identity = identity_of(interrupted)
    without(interrupted, "drop_last", "hfmds.accumulate")
    assert run_directory(resumed(interrupted)) == interrupted
    assert Checkpoints(interrupted / "checkpoints", identity).load().round == 2
    assert read_run(interrupted).settings["drop_last"] is False


def test_a_setting_whose_default_is_new_too_counts_as_what_was_done_before(interrupted):
    recorded = json.loads((interrupted / "config.json").read_text())["settings"]
    assert "hfmds.layer" not in recorded
    part = resumed(interrupted).parts[0]
    assert (part.layer, part.label_weight, part.tv, part.noise, part.first) == ("features", 1, 0, 1, "every")


@pytest.mark.parametrize("key", ["drop_last", "hfmds.accumulate"])
def test_another_value_of_it_is_refused(interrupted, key):
    identity = identity_of(interrupted)
    without(interrupted, key)
    with pytest.raises(InputError, match=rf"has --{key.replace('_', '-')} False, not True; leave it as it was"):
        run_directory(resumed(interrupted, **{key: True}))
    identity["settings"][key] = True
    with pytest.raises(RaysimError, match="was made with another settings"):
        Checkpoints(interrupted / "checkpoints", identity).load()


def test_settings_that_raysim_does_not_know_are_shown_but_not_resumed(interrupted, tmp_path):
    config = json.loads((interrupted / "config.json").read_text())
    config["settings"]["warp"] = 9
    (interrupted / "config.json").write_text(json.dumps(config))
    assert "warp" in write_report(interrupted, tmp_path / "page.html").read_text()
    config["settings"].pop("warp")
    wanted = resolve([("test", config["settings"] | {"out": str(interrupted), "resume": True})])
    with pytest.raises(InputError, match="unknown setting --warp"):
        run_directory(wanted)


# -- newer formats -----------------------------------------------------------------------------------------------------


def newer(path: Path, content: dict) -> str:
    path.write_text(json.dumps(content | {"format": 7}) + "\n")
    return rf"{path} has format 7, this raysim reads up to format 1: use a newer raysim$"


def test_a_newer_config_is_refused_by_every_command(interrupted, capsys):
    path = interrupted / "config.json"
    message = newer(path, json.loads(path.read_text()))
    with pytest.raises(InputError, match=message):
        read_run(interrupted)
    for words in (["report"], ["resume"]):
        assert main([*words, str(interrupted)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"raysim: {path} has format 7")


def test_a_newer_line_of_metrics_is_refused(interrupted):
    path = interrupted / "metrics.jsonl"
    message = newer(path, RoundMetrics(1).to_line())
    with pytest.raises(InputError, match=message):
        read_run(interrupted)
    with pytest.raises(InputError, match=message):
        RunDirectory(interrupted, resume=True).keep(1)
    assert '"format": 7' in path.read_text()


def test_a_newer_checkpoint_is_refused_and_not_taken_for_damaged(interrupted):
    manifest_of(interrupted, format=7)
    with pytest.raises(InputError, match=r"round-00002\.json has format 7"):
        Checkpoints(interrupted / "checkpoints", identity_of(interrupted)).load(pytest.fail)


def test_what_is_written_has_the_format(tmp_path):
    config = resolve([])
    directory = RunDirectory(tmp_path)
    directory.write_config(config)
    directory.write_metrics(RoundMetrics(1))
    assert json.loads((tmp_path / "config.json").read_text())["format"] == formats.CONFIG_FORMAT
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["format"] == formats.METRICS_FORMAT
    Checkpoints(tmp_path / "checkpoints", {}).save(1, {}, {}, {})
    manifest = (tmp_path / "checkpoints" / "round-00001.json").read_text().partition("\n")[2]
    assert json.loads(manifest)["format"] == formats.MANIFEST_FORMAT
