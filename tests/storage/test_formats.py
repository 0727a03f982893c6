"""Formats: what is written says its format, and files of any other format are refused by name."""

import hashlib
import json
from pathlib import Path

import pytest

from raysim.cli import main
from raysim.config import resolve
from raysim.engine.round_metrics import RoundMetrics
from raysim.errors import InputError, RaysimError
from raysim.storage import formats
from raysim.storage.checkpoints import Checkpoints
from raysim.storage.run_directory import RunDirectory
from raysim.storage.run_reader import read_run
from tests.golden import device
from tests.storage import made

OTHER = [(None, "no format"), (0, "format 0"), (7, "format 7"), ("1", "format '1'")]


def manifest_of(folder: Path, **changes: object) -> dict:
    """Rewrite the newest manifest of a run directory with these changes, and return its content."""
    path = max((folder / "checkpoints").glob("round-*.json"))
    content = json.loads(path.read_text().partition("\n")[2]) | changes
    text = json.dumps(content)
    path.write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}\n")
    return content


@pytest.fixture
def interrupted(tmp_path) -> Path:
    return made.copied(made.interrupted(), tmp_path / "interrupted")


def write(path: Path, content: dict, format: object) -> None:
    content = {key: value for key, value in content.items() if key != "format"}
    path.write_text(json.dumps(content | ({} if format is None else {"format": format})) + "\n")


@pytest.mark.parametrize(("format", "says"), OTHER)
def test_a_config_of_another_format_is_refused_by_every_command(interrupted, capsys, format, says):
    path = interrupted / "config.json"
    write(path, json.loads(path.read_text()), format)
    message = rf"{path} has {says}, this raysim reads format 1: use the raysim that wrote it$"
    with pytest.raises(InputError, match=message):
        read_run(interrupted)
    for words in (["report"], ["resume"]):
        assert main([*words, str(interrupted)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"raysim: {path} has ")


@pytest.mark.parametrize(("format", "says"), OTHER)
def test_a_line_of_metrics_of_another_format_is_refused(interrupted, format, says):
    path = interrupted / "metrics.jsonl"
    write(path, RoundMetrics(1).to_line(), format)
    before = path.read_text()
    message = rf"{path} has {says}, this raysim reads format 1: use the raysim that wrote it$"
    with pytest.raises(InputError, match=message):
        read_run(interrupted)
    with pytest.raises(InputError, match=message):
        RunDirectory(interrupted, resume=True).keep(1)
    assert path.read_text() == before


@pytest.mark.parametrize("format", [None, 1, 7])
def test_a_checkpoint_of_another_format_is_refused_and_not_taken_for_damaged(interrupted, format):
    content = manifest_of(interrupted, format=format)
    with pytest.raises(InputError, match=r"round-00002\.json has (no )?format"):
        Checkpoints(interrupted / "checkpoints", content["identity"]).load(pytest.fail)


@pytest.mark.parametrize("key", ["cpu", "loops"])
def test_a_checkpoint_of_another_kind_of_device_is_refused(interrupted, key):
    identity = manifest_of(interrupted)["identity"]
    assert Checkpoints(interrupted / "checkpoints", identity | {"device": device()}).load().round == 2
    with pytest.raises(RaysimError, match="was made with another device"):
        Checkpoints(interrupted / "checkpoints", identity | {"device": device() | {key: "other"}}).load()


@pytest.mark.parametrize("key", ["lr", "warp"])
def test_a_config_without_a_setting_or_with_an_unknown_one_is_not_resumed(interrupted, capsys, key):
    path = interrupted / "config.json"
    config = json.loads(path.read_text())
    if config["settings"].pop(key, None) is None:
        config["settings"][key] = 9
    path.write_text(json.dumps(config))
    assert main(["resume", str(interrupted), "--in-process"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"--{key}; another version of raysim wrote it: use that one")


def test_settings_that_raysim_does_not_know_are_shown(interrupted):
    """The method of the run may not be installed here."""
    path = interrupted / "config.json"
    config = json.loads(path.read_text())
    config["settings"] |= {"method": "my_lab.warp", "my_lab.warp.factor": 9}
    path.write_text(json.dumps(config))
    assert read_run(interrupted).settings["my_lab.warp.factor"] == 9
    assert main(["report", str(interrupted)]) == 0
    assert "my_lab.warp on shapes" in (interrupted / "report.html").read_text()


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
