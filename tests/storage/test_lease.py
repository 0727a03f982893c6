"""One driver per run directory: the second is refused, a dead one's lease is taken over, and by one driver only."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from raysim.cli import main
from raysim.errors import InputError, RaysimError
from raysim.storage import lease
from raysim.storage.lease import Lease, Owner, held, refuse_if_held
from raysim.storage.run_directory import RunDirectory
from tests.storage import made

ROOT = Path(__file__).parents[2]
TINY = ["--train-size", "40", "--test-size", "20", "--clients", "4", "--model", "mlp", "--in-process"]


def write_lease(path: Path, age: float = 0.0, **changes: object) -> bytes:
    """A lease of another owner, which gave its last sign of life so many seconds ago."""
    content = json.dumps(Owner.here().__dict__ | changes).encode()
    path.write_bytes(content)
    os.utime(path, (time.time() - age, time.time() - age))
    return content


def write_dead_lease(path: Path) -> bytes:
    """A lease of a process of this machine that is gone."""
    return write_lease(path, started="0")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- taking and giving back --------------------------------------------------------------------------------------------


def test_it_is_there_while_it_is_held_and_says_by_whom(tmp_path):
    folder = tmp_path / "runs" / "a"
    with held(folder):
        assert names(folder) == [".lease"]
        owner = Owner.read((folder / ".lease").read_bytes())
        assert owner.pid == os.getpid()
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(owner.since))
        expected = rf"{folder} is in use by process {os.getpid()} on {owner.host}, since {since}:\d\d; wait for it"
        for refused in (lambda: Lease(folder).take(), lambda: refuse_if_held(folder)):
            with pytest.raises(InputError, match=expected):
                refused()
    assert not folder.exists()  # nothing was written, and it was not there before


def test_what_was_written_stays_and_so_does_a_folder_that_was_there(tmp_path):
    with held(tmp_path / "a"):
        (tmp_path / "a" / "config.json").touch()
    assert names(tmp_path / "a") == ["config.json"]
    (tmp_path / "b").mkdir()
    with pytest.raises(KeyboardInterrupt), held(tmp_path / "b"):
        raise KeyboardInterrupt
    assert names(tmp_path / "b") == []


def test_a_process_with_a_used_number_is_another(tmp_path):
    write_dead_lease(tmp_path / ".lease")
    refuse_if_held(tmp_path)
    with held(tmp_path):
        assert names(tmp_path) == [".lease"]
    assert names(tmp_path) == []


def test_a_zombie_holds_nothing(tmp_path):
    with subprocess.Popen(["true"]) as process:
        while lease._started(process.pid):
            time.sleep(0.01)
        assert Path(f"/proc/{process.pid}").exists()


def test_an_owner_elsewhere_is_judged_by_its_last_sign_of_life(tmp_path):
    write_lease(tmp_path / ".lease", age=200, host="other", place="elsewhere")
    with pytest.raises(InputError, match=r"in use by process \d+ on other, .* try again 5 minutes after its end"):
        Lease(tmp_path).take()
    assert names(tmp_path) == [".lease"]
    write_lease(tmp_path / ".lease", age=400, host="other", place="elsewhere")
    with held(tmp_path):
        pass


def test_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.01)
    with held(tmp_path):
        os.utime(tmp_path / ".lease", (1, 1))
        until = time.monotonic() + 5
        while (tmp_path / ".lease").stat().st_mtime < 2 and time.monotonic() < until:
            time.sleep(0.01)
        assert time.time() - (tmp_path / ".lease").stat().st_mtime < 5


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"pid": 1}', b"[" * 100_000])
def test_what_is_no_lease_counts_until_it_is_old(tmp_path, content):
    """A power failure, or a file system without hard links, can leave such a file."""
    (tmp_path / ".lease").write_bytes(content)
    with pytest.raises(InputError, match=r"in use by an unknown driver \(.*\.lease\)"):
        Lease(tmp_path).take()
    os.utime(tmp_path / ".lease", (1, 1))
    with held(tmp_path):
        pass
    (tmp_path / ".lease").mkdir()
    with pytest.raises(InputError, match=r"\.lease is a directory"):
        Lease(tmp_path).take()


def test_without_hard_links(tmp_path, monkeypatch):
    def link(*paths):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    write_dead_lease(tmp_path / ".lease")
    with held(tmp_path), pytest.raises(InputError, match="in use"):
        Lease(tmp_path).take()
    assert names(tmp_path) == []


def test_a_reply_lost_on_the_way_does_not_lose_the_lease(tmp_path, monkeypatch):
    """NFS carries the request out, and then says to its repetition that the file is there."""
    real = os.link

    def link(*paths):
        real(*paths)
        raise FileExistsError

    monkeypatch.setattr(os, "link", link)
    with held(tmp_path):
        assert names(tmp_path) == [".lease"]


# -- crashes and races -------------------------------------------------------------------------------------------------


def killed_at(n: int, folder: Path) -> bool:
    """Whether a process that takes over was ended before its n-th operation on a file, as by SIGKILL."""
    if not (child := os.fork()):
        code, calls = 2, [0]

        def counted(function):
            def call(*arguments, **options):
                calls[0] += 1
                if calls[0] == n:
                    os._exit(9)
                return function(*arguments, **options)

            return call

        try:
            for name in ("link", "replace", "unlink", "fsync", "open"):
                setattr(os, name, counted(getattr(os, name)))
            Lease(folder).take()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


def test_a_crash_in_any_step_of_a_takeover_leaves_a_lease_that_can_be_taken(tmp_path):
    for steps in range(1, 20):
        folder = tmp_path / str(steps)
        folder.mkdir()
        write_dead_lease(folder / ".lease")
        ended = killed_at(steps, folder)
        killed_at(steps, folder)  # a second one crashes at the same place
        with held(folder):
            assert names(folder) == [".lease"]
        assert names(folder) == []
        if not ended:
            break
    assert 5 < steps < 19


def test_whoever_sees_a_dead_lease_late_does_not_take_it_from_its_new_owner(tmp_path, monkeypatch):
    """It has looked at the chain, and then sleeps while another takes the lease, works, and gives it back."""
    write_dead_lease(tmp_path / ".lease")
    real, tried = lease._end_of_chain, []

    def slow(folder, now):
        path = real(folder, now)
        if not tried:
            tried.append(path)
            first.take()  # it puts its lease into the first place, and removes the chain
        return path

    first, late = Lease(tmp_path), Lease(tmp_path)
    monkeypatch.setattr(lease, "_end_of_chain", slow)
    with pytest.raises(InputError, match="in use"):
        late.take()
    assert tried[0].name != ".lease"
    assert (tmp_path / ".lease").read_bytes() == first.content
    first.release()
    with held(tmp_path):
        pass


RACER = """
import sys, time
from pathlib import Path
from raysim.errors import InputError
from raysim.storage.lease import held
folder, begin = Path(sys.argv[1]), float(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for i in range(int(sys.argv[3])):
    try:
        with held(folder):
            (folder / "alone").mkdir()  # fails where it is there
            time.sleep(0.001)
            (folder / "alone").rmdir()
            print("won", flush=True)
            if begin: time.sleep(begin)
    except InputError:
        print("lost", flush=True)
"""


def race(folder: Path, racers: int, hold: float, rounds: int) -> list[list[str]]:
    """What each of several processes says that try to take the lease at once."""
    command = [sys.executable, "-c", RACER, str(folder), str(hold), str(rounds)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [subprocess.Popen(command, text=True, cwd=ROOT, **pipes) for _ in range(racers)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60) for process in processes]
    assert [errors for _, errors in said] == [""] * racers
    return [words.split() for words, _ in said]


def test_of_many_that_race_for_a_dead_lease_one_wins(tmp_path):
    (tmp_path / "run").mkdir()
    write_dead_lease(tmp_path / "run" / ".lease")
    said = race(tmp_path / "run", 4, hold=3.0, rounds=1)
    assert sorted(said) == [["lost"]] * 3 + [["won"]]
    assert names(tmp_path / "run") == []


def test_two_never_hold_it_at_once(tmp_path):
    """They take it and give it back as quickly as they can."""
    (tmp_path / "run").mkdir()
    write_dead_lease(tmp_path / "run" / ".lease")
    said = race(tmp_path / "run", 3, hold=0, rounds=150)
    assert sum(word == "won" for words in said for word in words) >= 3
    assert names(tmp_path / "run") == []


def test_threads_race_for_a_dead_lease_many_times(tmp_path):
    for i in range(30):
        folder = tmp_path / str(i)
        folder.mkdir()
        write_dead_lease(folder / ".lease")
        won, barrier = [], threading.Barrier(4)

        def work(folder=folder, won=won, barrier=barrier):
            mine = Lease(folder)
            barrier.wait()
            try:
                mine.take()
                won.append(mine)
            except InputError:
                pass

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        won[0].release()
        assert names(folder) == []


# -- in runs -----------------------------------------------------------------------------------------------------------


def test_a_driver_that_was_taken_for_dead_stops(tmp_path):
    with held(tmp_path) as mine:
        directory = RunDirectory(tmp_path, lease=mine)
        directory.check_lease()
        write_lease(tmp_path / ".lease", pid=77, host="other")
        with pytest.raises(RaysimError, match=r"was taken over by process 77 on other, .*silent for too long"):
            directory.check_lease()
    assert names(tmp_path) == [".lease"]  # which is not ours to give back


@pytest.fixture
def running(tmp_path):
    """A run with a driver of its own that goes on for as long as the test."""
    out = tmp_path / "run"
    words = [sys.executable, "-m", "raysim", "run", *TINY, "--rounds", "100000", "--out", str(out)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not list(out.glob("checkpoints/round-*.json")):
            time.sleep(0.02)
        yield process, out
        process.kill()


def test_a_second_driver_is_refused_whatever_it_wants(running, capsys):
    process, out = running
    again = ["run", *TINY, "--rounds", "100000", "--out", str(out)]
    for words in (["resume", str(out)], [*again, "--resume"], [*again, "--overwrite"]):
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"raysim: {out} is in use by process {process.pid} on ")
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert not list(out.glob(".lease*"))
    rounds = [json.loads(line)["round"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert rounds == [*range(1, len(rounds) + 1)]


def test_a_killed_driver_leaves_a_lease_that_the_next_one_takes(running, capsys):
    process, out = running
    process.kill()
    process.wait()
    assert (out / ".lease").exists()
    assert main(["run", *TINY, "--rounds", "2", "--out", str(out), "--overwrite"]) == 0
    assert not list(out.glob(".lease*"))


def test_a_run_that_fails_gives_it_back(tmp_path, monkeypatch, capsys):
    made.copied(made.interrupted(), tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    assert main(["resume", str(tmp_path / "run"), "--in-process"]) == 1
    assert not list((tmp_path / "run").glob(".lease*"))


def test_the_directory_is_looked_at_again_once_the_lease_is_held(tmp_path, monkeypatch, capsys):
    """Another driver had it until then: what that wrote is not removed."""
    from raysim import single_run

    out = tmp_path / "run"
    real = single_run.prepare

    def slow(config):
        made.copied(made.finished(), out)
        return real(config)

    monkeypatch.setattr(single_run, "prepare", slow)
    assert main(["run", *TINY, "--rounds", "1", "--out", str(out)]) == 2
    assert "exists; choose another" in capsys.readouterr().err
    assert names(out) == names(made.finished())
