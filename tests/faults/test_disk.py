"""The disk is full, or gone: one line that says which file, why and what to do; then `resume` ends as undisturbed."""

import builtins
import errno
import json
import os
import resource
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from raysim.cli import main
from raysim.engine.round_metrics import RoundMetrics
from raysim.errors import RaysimError
from raysim.storage.files import replacing, write_atomically, writing
from raysim.storage.run_directory import RunDirectory
from tests.faults.test_resume import SETTINGS, raysim, results

# The last of a flag counts.
RUN = ["run", *SETTINGS, "--rounds", "4", "--clients", "4", "--active", "3", "--train-size", "80"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main([*RUN, "--out", str(out)]) == 0
    return out


def one_line(error: str, reason: str, command: str) -> str:
    """The file an error names."""
    assert error.count("\n") == 1
    file, told, rest = error.removeprefix("raysim: ").partition(" cannot be written: ")
    assert told
    assert rest.startswith(reason)
    assert rest.endswith(f"{command}\n")
    return file


# -- in this process, file by file -------------------------------------------------------------------------------------


def refuse(monkeypatch, name: str, error: int) -> None:
    """Files of this name, finished or not, cannot be opened to be written."""

    def guarded(file, mode="r", *arguments, _open=builtins.open, **options):
        if set(mode) & set("wa+") and name in str(file):
            raise OSError(error, os.strerror(error))
        return _open(file, mode, *arguments, **options)

    monkeypatch.setattr(builtins, "open", guarded)


# In the order in which a run writes them; the labels are drawn beside it, and waited for at its end.
FILES = (
    "metrics.jsonl", "checkpoints/.server-00001", "checkpoints/.round-00001", "checkpoints/.states-00002",
    "checkpoints/.shared-hfmds-00002", "checkpoints/.server-00003", "checkpoints/.shared-hfmds-00004",
    "checkpoints/.round-00004", "model.safetensors", "privacy.json", "labels.png", "synthetic.parquet", "synthetic.png",
    "summary.json",
)  # fmt: skip


def test_no_space_for_one_file_after_the_other(undisturbed, tmp_path, capsys):
    out = tmp_path / "run"
    words = [*RUN, "--out", str(out)]
    for name in FILES:
        with pytest.MonkeyPatch.context() as monkeypatch:
            refuse(monkeypatch, name, errno.ENOSPC)
            assert main(words) == 1
        file = one_line(capsys.readouterr().err, "No space left on device; free space, then", f"resume {out}`")
        assert file.startswith(str(out / name.replace("/.", "/")))
        assert not list(out.rglob(".*"))
        words = ["resume", str(out)]
    assert main(words) == 0
    assert results(out) == results(undisturbed)


def test_before_there_is_anything_to_resume_it_says_so(tmp_path, monkeypatch, capsys):
    refuse(monkeypatch, "config.json", errno.EROFS)
    assert main([*RUN, "--out", str(tmp_path / "run")]) == 1
    one_line(capsys.readouterr().err, "Read-only file system; put that right, then", "start the run again")


def test_where_only_the_report_is_missing_it_says_so(tmp_path, monkeypatch, capsys):
    out = tmp_path / "with a space"
    with pytest.MonkeyPatch.context() as patched:
        refuse(patched, "report.html", errno.EDQUOT)
        assert main([*RUN, "--out", str(out)]) == 1
    one_line(capsys.readouterr().err, "Disk quota exceeded; free space, then", f"raysim report '{out}'`")
    assert main(["report", str(out)]) == 0
    assert (out / "report.html").exists()


@pytest.mark.parametrize("what", ["", "checkpoints"])
def test_a_folder_that_is_removed(tmp_path, monkeypatch, capsys, what):
    """The run directory, or its checkpoints: a later one would count on files that are gone."""
    out, write = tmp_path / "run", RunDirectory.write_metrics

    def write_and_remove(self, metrics):
        write(self, metrics)
        if metrics.round == 3:
            (out / what).rename(tmp_path / "elsewhere")  # at once, whatever is being written

    monkeypatch.setattr(RunDirectory, "write_metrics", write_and_remove)
    assert main([*RUN, "--out", str(out)]) == 1
    again = f"resume {out}`" if what else "start the run again"
    one_line(capsys.readouterr().err, "No such file or directory; put that right, then", again)


def test_an_interrupted_write_leaves_no_file(tmp_path):
    write_atomically(tmp_path / "a", b"before")

    def interrupted():
        with replacing(tmp_path / "a") as file:
            file.write(b"after")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"before")]


def test_only_what_the_disk_says_is_told_as_its_error(tmp_path):
    with pytest.raises(ZeroDivisionError), writing(tmp_path / "a"):
        _ = 1 / 0


# -- the kernel's limit on files, which needs no privileges ------------------------------------------------------------


@contextmanager
def files_up_to(size: int):
    """Processes started within inherit it."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))


def test_a_checkpoint_that_is_refused_in_the_middle_of_a_write(undisturbed, tmp_path):
    out = tmp_path / "run"
    with files_up_to((undisturbed / "checkpoints" / "server-00004.safetensors").stat().st_size // 2):
        done = raysim(*RUN, "--out", str(out))
    assert done.returncode == 1
    assert one_line(done.stderr, "File too large", f"resume {out}`") == f"{out}/checkpoints/server-00001.safetensors"
    assert not list(out.rglob(".*"))
    assert main(["resume", str(out)]) == 0
    assert results(out) == results(undisturbed)


# -- lines -------------------------------------------------------------------------------------------------------------


def test_a_line_that_does_not_fit_is_not_there_in_half(tmp_path):
    record = RunDirectory(tmp_path)
    record.write_event("short", {})
    before = (tmp_path / "events.jsonl").read_bytes()
    error = r"events\.jsonl cannot be written: File too large"
    with files_up_to(len(before) + 10), pytest.raises(RaysimError, match=error):
        record.write_event("long", {"text": "x" * 100})  # of which the kernel takes ten bytes
    assert (tmp_path / "events.jsonl").read_bytes() == before
    record.write_event("next", {})
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["short", "next"]


def test_a_line_cut_by_a_kill_goes_when_the_run_goes_on(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"event": "a"}\n{"event": "b", "te')
    RunDirectory(tmp_path, resume=True).write_event("c", {})
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["a", "c"]


def test_metrics_that_lost_rounds_are_not_gone_on_with(tmp_path):
    """The checkpoint is of a later round than the lines are: rounds would be done again on top of themselves."""
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n')
    with pytest.raises(RaysimError, match=r"metrics\.jsonl has lost rounds \(1 of 2 are left\)"):
        RunDirectory(tmp_path, resume=True).keep(2)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"round": 1}\n'


def test_metrics_with_a_flipped_byte_are_not_gone_on_with(tmp_path):
    record = RunDirectory(tmp_path)
    for t in (1, 2, 3):
        record.write_metrics(RoundMetrics(t, accuracy=0.5))
    digest, path = record.synced_metrics(2), tmp_path / "metrics.jsonl"
    assert [metrics.round for metrics in RunDirectory(tmp_path, resume=True).keep(2, digest)] == [1, 2]
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(RaysimError, match=r"metrics\.jsonl (is damaged: its first 2 lines|has lost rounds)"):
            RunDirectory(tmp_path, resume=True).keep(2, digest)


def test_the_digest_of_metrics_follows_rounds_done_again(tmp_path):
    record, other = RunDirectory(tmp_path / "again"), RunDirectory(tmp_path / "once")
    for t in (1, 2, 3, 2, 3):
        record.write_metrics(RoundMetrics(t))
    for t in (1, 2, 3):
        other.write_metrics(RoundMetrics(t))
    assert record.synced_metrics(3) == other.synced_metrics(3)
    assert record.synced_metrics(2) != other.synced_metrics(3)


# -- a small disk ------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """Mounts a file system of so many bytes; called again it has another size."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def of(size: int) -> Path:
        again = "remount," if os.path.ismount(folder) else ""
        command = ["mount", "-t", "tmpfs", "-o", f"{again}size={size}", "raysim-test", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
        return folder

    yield of
    if os.path.ismount(folder):
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_fills_up_again_and_again(undisturbed, small_disk, capsys):
    """Room for half a checkpoint, for one and a half, for two and a half; three are there before the oldest goes."""
    size = (undisturbed / "checkpoints" / "server-00004.safetensors").stat().st_size
    others = ("*.jsonl", "config.json", "labels.png", "checkpoints/sh*", "checkpoints/states*", "checkpoints/*.json")
    rest = sum(path.stat().st_size + 4096 for pattern in others for path in undisturbed.glob(pattern))
    out = small_disk(size // 2 + rest) / "run"
    done = raysim(*RUN, "--out", str(out))
    assert done.returncode == 1
    error = done.stderr
    for fits in (0, 1, 2):
        if fits:
            small_disk(fits * size + size // 2 + rest)
            assert main(["resume", str(out)]) == 1
            error = capsys.readouterr().err
        file = one_line(error, "No space left on device; free space, then", f"resume {out}`")
        assert file == f"{out}/checkpoints/server-{fits + 1:05d}.safetensors"
        assert not list(out.rglob(".*"))
    small_disk(10 * size)
    assert main(["resume", str(out)]) == 0
    assert "going on after round 2" in capsys.readouterr().out
    assert results(out) == results(undisturbed)
