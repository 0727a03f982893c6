"""What `--overwrite` and the tidying of checkpoints remove: files that raysim wrote, and nothing else, ever."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from raysim.cli import main
from raysim.errors import InputError, RaysimError
from raysim.storage import run_files
from raysim.storage.checkpoints import FILE_NAME, Checkpoints
from raysim.storage.run_directory import RunDirectory
from tests.storage import made

TINY = ["--train-size", "40", "--test-size", "20", "--clients", "4", "--rounds", "2", "--model", "mlp", "--in-process"]


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every entry below a folder, with the content of files."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refused(folder: Path, capsys, *words: str) -> str:
    """The one line with which `--overwrite` leaves the folder as it was."""
    before = tree(folder)
    assert main(["run", *TINY, "--out", str(folder), "--overwrite", *words]) == 2
    assert tree(folder) == before
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.fixture
def finished(tmp_path) -> Path:
    folder = made.copied(made.finished(), tmp_path / "run")
    shutil.rmtree(folder / "checkpoints")
    return folder


# -- overwrite ---------------------------------------------------------------------------------------------------------


def test_a_models_folder_with_a_config_of_its_own_is_not_touched(tmp_path, capsys):
    folder = tmp_path / "bert"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "checkpoints" / "last.ckpt").write_bytes(b"a week of work")
    line = refused(folder, capsys)
    assert line.startswith(f"raysim: --out {folder}: its config.json is not one that raysim wrote")


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff\xfe", b'{"settings": {}, "versions": {"raysim": "1"}}'])
def test_nor_is_one_whose_config_says_nothing(tmp_path, capsys, content):
    (tmp_path / "config.json").write_bytes(content)
    assert "its config.json is not one that raysim wrote" in refused(tmp_path, capsys)


@pytest.mark.parametrize("name", ["labels.csv", "model.safetensors", "log.txt.old", "report.html"])
def test_nor_is_one_without_a_config_whose_files_have_names_like_ours(tmp_path, capsys, name):
    (tmp_path / name).write_text("precious")
    assert "is not a run directory, so --overwrite will not touch it" in refused(tmp_path, capsys)


def test_nor_are_other_peoples_events(tmp_path, capsys):
    (tmp_path / "events.jsonl").write_text('{"event": "birthday"}\n')
    assert "is not a run directory" in refused(tmp_path, capsys)


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt", "checkpoints/best.ckpt", "checkpoints/server-1.safetensors", "checkpoints/older/round-00001.json",
        "profile/mine.txt", "tensorboard/notes.txt", "tensorboard/events.out.tfevents.mine", "metrics.jsonl.bak",
        "model.safetensors/weights",
    ],
)  # fmt: skip
def test_a_foreign_entry_stops_it_before_anything_is_removed(finished, capsys, name):
    if "/" in name and (finished / name).parent.is_file():
        (finished / name).parent.unlink()
    (finished / name).parent.mkdir(exist_ok=True, parents=True)
    (finished / name).write_text("precious")
    told = {"checkpoints/older/round-00001.json": "checkpoints/older", "model.safetensors/weights": "model.safetensors"}
    assert f"raysim did not write its {told.get(name, name)}, so --overwrite removes nothing" in refused(
        finished, capsys
    )


def test_a_run_is_replaced_with_all_that_was_its_own(finished):
    shutil.copytree(made.interrupted() / "checkpoints", finished / "checkpoints")
    own = [
        "checkpoints/.server-00003.safetensors.tmp", "profile/training.txt", "profile/hfmds.json", "profile/ray.json",
        "tensorboard/events.out.tfevents.1763370000.host-1.lan.77.0", ".labels.png.12-34.tmp", ".summary.json.tmp",
        "log.txt", ".lock",
    ]  # fmt: skip
    for name in own:
        (finished / name).parent.mkdir(exist_ok=True)
        (finished / name).touch()
    RunDirectory(finished)
    assert [path.name for path in finished.iterdir()] == [".lock"]


def test_of_links_only_the_link_is_removed_and_linked_folders_stay(finished, tmp_path):
    scratch = tmp_path / "scratch"
    shutil.copytree(made.interrupted() / "checkpoints", scratch)
    (finished / "config.json").unlink()
    shutil.copy(made.interrupted() / "config.json", finished)
    (finished / "checkpoints").symlink_to(scratch)
    (tmp_path / "precious").write_text("mine")
    (finished / "report.html").unlink()
    (finished / "report.html").symlink_to(tmp_path / "precious")
    (tmp_path / "board").mkdir()
    (tmp_path / "board" / "events.out.tfevents.1763370000.host-1.lan.77.0").write_text("of all my runs")
    (finished / "tensorboard").symlink_to(tmp_path / "board")
    RunDirectory(finished)
    assert (tmp_path / "precious").read_text() == "mine"
    assert sorted(path.name for path in finished.iterdir()) == ["checkpoints", "tensorboard"]
    assert list((tmp_path / "board").iterdir())
    assert not list(scratch.iterdir())


def test_another_runs_checkpoints_behind_a_link_stop_it(finished, tmp_path, capsys):
    other = tmp_path / "other"
    saved(other, 1, 2, run="other", settings={"seed": 77})
    (finished / "checkpoints").symlink_to(other)
    before = tree(other)
    assert "no checkpoint of this run names its checkpoints/round-00001.json" in refused(finished, capsys)
    assert tree(other) == before


def test_what_every_run_leaves_can_be_overwritten(tmp_path):
    out = tmp_path / "run"
    words = ["run", *TINY, "--method", "fedprox", "--profile", "--out", str(out)]
    assert main(words) == 0
    assert main([*words, "--overwrite"]) == 0
    run_files.remove(run_files.own_files(out))
    assert not list(out.iterdir())


# -- checkpoints -------------------------------------------------------------------------------------------------------


def saved(folder: Path, *rounds: int, **identity: object) -> Checkpoints:
    checkpoints = Checkpoints(folder, identity or {"data": "abc"})
    for t in rounds:
        checkpoints.save(t, {"w": np.ones(2)}, {}, {})
    return checkpoints


def test_a_linked_folder_of_checkpoints_keeps_what_else_is_in_it(tmp_path):
    scratch = tmp_path / "scratch"
    (scratch / "server-00001.safetensors").mkdir(parents=True)
    others = ["thesis.tex", "round-1.json", "server-00001.bin", ".bashrc", ".x.tmp", "shared-a b-00001.arrow"]
    for name in others:
        (scratch / name).write_text("precious")
    (tmp_path / "checkpoints").symlink_to(scratch)
    saved(tmp_path / "checkpoints", 2, 3, 4, 5)
    names = {path.name for path in scratch.iterdir()}
    ours = {f"{kind}-0000{t}.{end}" for t in (4, 5) for kind, end in (("round", "json"), ("server", "safetensors"))}
    assert names == {*others, "server-00001.safetensors"} | ours


@pytest.mark.parametrize("settings", [{"seed": 1}, {"seed": 2}], ids=["equal settings", "other settings"])
def test_a_folder_with_another_runs_checkpoints_is_refused_and_stays(tmp_path, settings):
    saved(tmp_path / "a", 1, 2, run="a", settings={"seed": 1})
    before = tree(tmp_path / "a")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(RaysimError, match=r"round-0000\d.json was made by another run: this run cannot go on here"):
        saved(tmp_path / "b", 5, 6, 7, run="b", settings=settings)
    assert tree(tmp_path / "a") == before


def test_what_no_checkpoint_of_this_run_names_stays_whatever_its_name(tmp_path):
    """Another run's, whose manifest is damaged, say, or still to be written."""
    others = ["round-00001.json", "server-00001.safetensors", ".states-00001.safetensors.tmp", "shared-a-00001.arrow"]
    for name in others:
        (tmp_path / name).write_text("precious")
    saved(tmp_path, 2, 3, 4, 5)
    ours = {f"{kind}-0000{t}.{end}" for t in (4, 5) for kind, end in (("round", "json"), ("server", "safetensors"))}
    assert {path.name for path in tmp_path.iterdir()} == {*others} | ours


def test_a_run_that_is_resumed_beside_anothers_checkpoints(tmp_path, capsys):
    """Its own, of a later round, are in the same folder: it could go on, and would tidy up."""
    for name, seed in (("a", "1"), ("b", "2")):
        assert main(["run", *TINY, "--seed", seed, "--out", str(tmp_path / name)]) == 0
    shared = tmp_path / "a" / "checkpoints"
    for path in shared.glob("*-00002.*"):
        path.unlink()
    for path in (tmp_path / "b" / "checkpoints").glob("*-00002.*"):
        path.rename(shared / path.name)
    shutil.rmtree(tmp_path / "b" / "checkpoints")
    (tmp_path / "b" / "checkpoints").symlink_to(shared)
    (tmp_path / "b" / "summary.json").unlink()
    before = tree(shared)
    capsys.readouterr()
    assert main(["resume", str(tmp_path / "b"), "--in-process"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "checkpoints/round-00001.json was made by another run: this run cannot go on here" in line
    assert tree(shared) == before


def test_a_run_goes_on_with_its_checkpoints_behind_a_link(tmp_path):
    out, scratch = tmp_path / "run", tmp_path / "scratch"
    assert main(["run", *TINY, "--out", str(out)]) == 0
    (out / "summary.json").unlink()
    for path in (out / "checkpoints").glob("*-00002.*"):
        path.unlink()
    (out / "checkpoints").rename(scratch)
    (out / "checkpoints").symlink_to(scratch)
    assert main(["resume", str(out), "--in-process"]) == 0
    assert (scratch / "round-00002.json").exists()
    assert main(["run", *TINY, "--out", str(out), "--overwrite"]) == 0
    assert (out / "checkpoints").is_symlink()
    assert (scratch / "round-00002.json").exists()


def rewritten(path: Path, **changes: object) -> None:
    """The manifest with these changes, and the right digest."""
    text = json.dumps(json.loads(path.read_text().partition("\n")[2]) | changes)
    path.write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}\n")


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/b", "..", ".", "", "server-00002.safetensors/.."])
def test_a_manifest_that_names_files_elsewhere_is_damaged(tmp_path, name):
    saved(tmp_path / "c", 1, 2)
    rewritten(tmp_path / "c" / "round-00002.json", files={name: "0"})
    reasons: list[str] = []
    assert Checkpoints(tmp_path / "c", {"data": "abc"}).load(reasons.append).round == 1
    assert reasons == [
        f"checkpoint round-00002.json: it names {name!r}, which no checkpoint has; using the one before it"
    ]


def test_a_copied_manifest_is_damaged(tmp_path):
    """It is of a round that was not reached."""
    saved(tmp_path / "c", 1, 2)
    shutil.copy(tmp_path / "c" / "round-00002.json", tmp_path / "c" / "round-00007.json")
    reasons: list[str] = []
    assert Checkpoints(tmp_path / "c", {"data": "abc"}).load(reasons.append).round == 2
    assert "round-00007.json: it is of another round than its name says" in reasons[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"files": []}, {"states": []}, {"states": {"x": 1}}, {"shared": {"a": "b"}}, {"begun": 3}, {"identity": []},
        {"server": {"tensor": "nowhere"}}, {"round": "2"}, {"files": {"server-00002.safetensors": None}},
    ],
)  # fmt: skip
def test_a_manifest_with_other_content_is_damaged(tmp_path, changes):
    saved(tmp_path / "c", 1, 2)
    rewritten(tmp_path / "c" / "round-00002.json", **changes)
    reasons: list[str] = []
    assert Checkpoints(tmp_path / "c", {"data": "abc"}).load(reasons.append).round == 1
    assert len(reasons) == 1


def test_the_names_of_checkpoints_are_told_from_others():
    for name in ("round-00001.json", "server-123456-00002.safetensors", "shared-fedpa_reference-00002.arrow"):
        assert FILE_NAME.fullmatch(name)
    for name in ("shared-hfmds-00002-0123456789abcdef.arrow", "states-00001.safetensors"):
        assert FILE_NAME.fullmatch(name)
    for name in (
        "round-1.json",
        "round-00001.json.bak",
        "server-00001",
        "shared-../x-00001.arrow",
        "states-x.safetensors",
    ):
        assert not FILE_NAME.fullmatch(name)


def test_a_directory_that_another_program_writes_to_in_the_meantime(finished):
    """Checked again right before files are removed."""
    run_files.own_files(finished)
    (finished / "precious").touch()
    with pytest.raises(InputError, match="did not write its precious"):
        RunDirectory(finished)
    assert (finished / "metrics.jsonl").exists()
