"""Ray's files are ours alone: another user of the machine can neither see nor touch them, nor make us trust his."""

import os
import pwd
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from raysim.engine.ray_runner import private_folder
from raysim.errors import InputError
from tests.cluster.local_cluster import ENVIRONMENT, ROOT, call

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")

# A Ray as a run starts it; says where its session is, and waits.
RAY = """
import ray
from raysim.engine.ray_runner.cluster import connected
with connected():
    print(ray._private.worker._global_node.get_session_dir_path(), flush=True)
    input()
"""

# What another user tries with every directory from a session up; prints what he achieved.
INTRUDER = """
import os, socket, sys
from pathlib import Path
session = Path(sys.argv[1])
os.setgroups([]), os.setgid(65534), os.setuid(65534)
def attempt(what, action, *arguments):
    try:
        action(*arguments)
    except OSError:
        return
    print(what)
for folder in (session / "sockets", session / "logs", session, *session.parents):
    if folder in (Path("/tmp"), Path(sys.argv[2])):  # everybody's
        break
    attempt(f"listed {folder}", os.listdir, folder)
    attempt(f"wrote to {folder}", (folder / "planted").touch)
    attempt(f"moved {folder}", os.rename, folder, f"{folder}-moved")
attempt("read a log", (session / "logs" / "raylet.out").read_text)
attempt("connected", socket.socket(socket.AF_UNIX).connect, str(session / "sockets" / "raylet"))
"""


def as_nobody(program: str, *words: object) -> str:
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@needs_root
@pytest.mark.parametrize("end", ["in order", "killed"])
def test_another_user_gets_nowhere_near_a_runs_ray_and_nothing_stays(end):
    base = Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))
    base.chmod(0o1777)
    environment = {k: v for k, v in ENVIRONMENT.items() if k != "TMPDIR"} | {"TMPDIR": str(base)}
    command = [sys.executable, "-c", RAY]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        session = process.stdout.readline().strip()
        try:
            assert os.path.exists(f"{session}/sockets/raylet")
            assert as_nobody(INTRUDER, session, base) == ""
            (folder,) = base.iterdir()
            found = folder.stat()
            assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o700, os.getuid())
        finally:
            if end == "killed":
                process.send_signal(signal.SIGKILL)
            else:
                process.stdin.write("\n")
            _, errors = process.communicate()  # the process beside it has the other end of stderr, and ends last
    assert errors.count("raysim: the driver of the run died") == (end == "killed")
    base.rmdir()  # empty


class TestTheFolder:
    def test_is_private_and_can_be_removed(self, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", "/tmp")
        folder, other = private_folder.make(), private_folder.make()
        assert folder != other
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / private_folder.RAY / "session").mkdir(parents=True)
        for made in (folder, other):
            private_folder.remove(made)
            assert not made.exists()

    @pytest.mark.parametrize("changed", ["mode", "marker", "link"])
    def test_only_what_we_made_is_removed(self, changed, tmp_path):
        folder = private_folder.make()
        (folder / "precious").touch()
        link = tmp_path / "link"
        if changed == "mode":
            folder.chmod(0o755)
        elif changed == "marker":
            (folder / private_folder.MARKER).unlink()
        else:
            link.symlink_to(folder)
        private_folder.remove(link if changed == "link" else folder)
        assert (folder / "precious").exists()
        folder.chmod(0o700)
        (folder / private_folder.MARKER).touch()
        private_folder.remove(folder)

    def test_what_a_link_in_it_points_to_stays(self, tmp_path):
        (tmp_path / "precious").touch()
        folder = private_folder.make()
        (folder / "link").symlink_to(tmp_path)
        private_folder.remove(folder)
        assert not folder.exists()
        assert (tmp_path / "precious").exists()

    @needs_root
    def test_of_another_user_is_not_removed(self):
        folder = private_folder.make()
        os.chown(folder, pwd.getpwnam("nobody").pw_uid, -1)
        private_folder.remove(folder)
        assert folder.exists()
        os.chown(folder, 0, -1)
        private_folder.remove(folder)

    def test_a_base_that_is_too_long_or_open_is_not_used(self, monkeypatch, tmp_path):
        base = Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))
        base.chmod(0o777)  # without the sticky bit anybody can rename what is in it
        monkeypatch.setattr(tempfile, "tempdir", str(base))
        folder = private_folder.make()
        assert folder.parent == Path("/tmp")
        private_folder.remove(folder)
        monkeypatch.setattr(private_folder, "_bases", lambda: [str(base), "/tmp/" + "x" * 30])
        with pytest.raises(InputError, match=r"can be moved by other users, .* is longer than the 25 bytes .*TMPDIR"):
            private_folder.make()
        base.rmdir()

    def test_rays_sockets_fit_into_the_longest_base(self):
        longest = private_folder.LONGEST_SOCKET - len(private_folder.LONGEST_BELOW)
        assert longest >= len("/tmp/slurm.12345678")


@pytest.mark.parametrize("command", ["status", "stop", "start"])
@pytest.mark.parametrize("how", ["another's", "open", "link"])
def test_local_sh_trusts_no_directory_that_another_user_may_have_made(command, how, tmp_path):
    if how == "another's" and os.getuid() != 0:
        pytest.skip("only root can give a directory away")
    parent = Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))
    real = parent / "real"
    real.mkdir(mode=0o700)
    (real / "made-by-local.sh").touch()
    (real / "exports").write_text(f"export A=$(touch {tmp_path}/executed)\n")
    state = real
    if how == "open":
        real.chmod(0o777)
    elif how == "link":
        state = parent / "link"
        state.symlink_to(real)
    else:
        os.chown(real, pwd.getpwnam("nobody").pw_uid, -1)
    done = call("cluster/local.sh", command, RAYSIM_CLUSTER=str(state))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"local.sh: {state} is not yours alone")
    assert (real / "exports").exists()
    subprocess.run(["rm", "-r", parent], check=True)


def test_local_sh_starts_nothing_below_a_folder_others_can_change():
    parent = Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))
    parent.chmod(0o777)
    done = call("cluster/local.sh", "start", RAYSIM_CLUSTER=f"{parent}/c")
    assert done.returncode == 2
    assert done.stderr == (
        f"local.sh: {parent} can be changed by other users, so nothing below it is safe; use another directory\n"
    )
    parent.rmdir()
