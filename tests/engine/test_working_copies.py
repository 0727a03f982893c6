"""Working copies of runs in a store: each goes with its run, or when the next comes and its process is gone."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from raysim.engine import working_copies
from raysim.engine.signals import how_to_go_on, interrupted_line
from raysim.engine.working_copies import MARK, WorkingCopy, address_of, remove_ownerless

ADDRESS = "s3://lab/runs/first"
OWNER = f"""
import signal
from raysim.engine.working_copies import WorkingCopy
copy = WorkingCopy({ADDRESS!r}, "first")
(copy.folder / "config.json").touch()
print(copy.folder, flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def other(here):
    """Another process with a working copy, and where that is."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER], env=os.environ | {"TMPDIR": str(here)}, stdout=subprocess.PIPE, text=True
    )
    yield process, Path(process.stdout.readline().strip())
    process.kill()
    process.communicate()


def test_a_copy_stays_as_long_as_its_process_and_goes_when_that_was_killed(other):
    process, folder = other
    remove_ownerless()
    assert (folder / "config.json").exists()
    process.send_signal(signal.SIGSTOP)  # it gives no sign of life, and lives
    remove_ownerless()
    assert (folder / "config.json").exists()
    process.kill()
    process.wait()
    assert address_of(str(folder)) == ADDRESS
    remove_ownerless()
    assert not folder.parent.exists()


def test_our_own_is_not_removed_under_us():
    copy = WorkingCopy(ADDRESS, "first")
    remove_ownerless()
    assert copy.folder.is_dir()
    copy.discard()
    assert not copy.folder.parent.exists()


def test_what_is_not_ours_stays(here, monkeypatch):
    abandoned = WorkingCopy(ADDRESS, "first")
    abandoned.mark.close()
    begun = here / "raysim-begun" / f"{MARK}.tmp"  # another process is about to own it
    plain = here / "raysim-notes" / "text"
    for path in (begun, plain):
        path.parent.mkdir()
        path.touch()
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / MARK).touch()
    (here / "raysim-link").symlink_to(elsewhere)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 12345)  # we are another user, who may read it
        remove_ownerless()
    assert abandoned.folder.is_dir()
    remove_ownerless()
    assert not abandoned.folder.exists()
    assert begun.exists()
    assert plain.exists()
    assert (elsewhere / MARK).exists()


def test_where_there_are_no_locks_nothing_is_removed(monkeypatch):
    def without(file: object) -> None:
        raise OSError

    monkeypatch.setattr(working_copies, "_lock", without)
    copy = WorkingCopy(ADDRESS, "first")
    remove_ownerless()
    assert copy.folder.is_dir()


def test_the_line_that_ends_a_run_says_how_to_go_on_and_where_its_copy_is():
    copy = WorkingCopy(ADDRESS, "first")
    ends = f"; its working copy is {copy.folder}, until the next run in a store removes it"
    assert how_to_go_on(str(copy.folder)) == f"give the same command again, with --out {ADDRESS} --resume{ends}"
    (copy.folder / "config.json").touch()
    assert how_to_go_on(str(copy.folder)) == f"`python -m raysim resume {ADDRESS}` goes on{ends}"
    copy.discard()
    assert interrupted_line(ADDRESS) == (
        f"raysim: interrupted; `python -m raysim resume {ADDRESS}` goes on if it had begun, else give the same command "
        "again"
    )
