"""Run directories in an S3 store: equal hashes, whole at every moment, one driver at a time, faults in one line."""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from raysim.cli import main
from raysim.errors import InputError, RaysimError
from raysim.storage import remote, remote_lease
from raysim.storage.lease import Owner
from raysim.storage.remote import Mirror
from tests.faults.harness import ROOT
from tests.storage.stores import KEY, SECRET, Proxy, contents, environment, names, open_store, served

SETTINGS = [
    "--method", "hfmds+scaffold", "--hfmds.every", "2", "--hfmds.steps", "2", "--hfmds.per-client", "5",
    "--model", "mlp", "--clients", "6", "--active", "4", "--rounds", "5", "--train-size", "200", "--test-size", "100",
    "--image-size", "16", "--in-process",
]  # fmt: skip


@pytest.fixture(scope="module")
def port():
    with served() as port:
        yield port


@pytest.fixture
def here(port, monkeypatch):
    """The environment of this process reaches the store."""
    for key, value in environment(port).items():
        monkeypatch.setenv(key, value)
    return port


def started(port: int, temp: Path, *words: str) -> subprocess.Popen:
    """`raysim …` on a machine whose disk has nothing but `temp`."""
    temp.mkdir(parents=True, exist_ok=True)
    env = os.environ | environment(port) | {"TMPDIR": str(temp), "PYTHONPATH": str(ROOT), "HOME": str(temp)}
    return subprocess.Popen(
        [sys.executable, "-m", "raysim", *words], cwd=temp, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def raysim(port: int, temp: Path, *words: str) -> tuple[int, str, str]:
    process = started(port, temp, *words)
    said, complained = process.communicate(timeout=600)
    return process.returncode, said, complained


HASHES = ("model_sha256", "server_state_sha256", "synthetic_sha256")


def hashes(summary: bytes) -> list[str]:
    return [json.loads(summary)[key] for key in HASHES]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    out = tmp_path_factory.mktemp("local") / "run"
    done = subprocess.run([sys.executable, "-m", "raysim", "run", *SETTINGS, "--out", str(out)], cwd=ROOT, check=False)
    assert done.returncode == 0
    return hashes((out / "summary.json").read_bytes()), {path.name for path in out.iterdir()}


def test_a_run_in_a_store_is_the_run_on_a_disk(port, expected, tmp_path):
    code, said, complained = raysim(port, tmp_path / "disk", "run", *SETTINGS, "--out", "s3://lab/first/run")
    assert code == 0, complained
    assert "run directory: s3://lab/first/run\n" in said
    assert "report: s3://lab/first/run/report.html" in said
    found = contents(port, "lab/first/run")
    assert hashes(found["summary.json"]) == expected[0]
    assert {name.partition("/")[0] for name in found} == expected[1]
    assert json.loads(found["config.json"])["settings"]["out"] == "s3://lab/first/run"
    assert len([name for name in found if name.startswith("checkpoints/round-")]) == 2
    # Nothing is left on the disk, and the credentials are nowhere.
    assert [path for path in (tmp_path / "disk").rglob("*") if path.is_file() and ".cache" not in str(path)] == []
    for text in (said, complained, *found.values()):
        text = text.encode() if isinstance(text, str) else text
        assert SECRET.encode() not in text
        assert KEY.encode() not in text
    code, said, _ = raysim(port, tmp_path / "other", "resume", "s3://lab/first/run")
    assert (code, "s3://lab/first/run is finished: nothing to go on with" in said) == (0, True)
    code, _, complained = raysim(port, tmp_path / "other", "run", *SETTINGS, "--out", "s3://lab/first/run")
    assert code == 2
    assert complained == (
        "raysim: --out s3://lab/first/run exists; choose another, add --resume to go on or --overwrite to replace it\n"
    )


def kill_and_resume(port, tmp_path, name, until):
    """Kill the driver with -9 when `until(objects)` is true; its disk is gone, and another machine goes on."""
    address = f"s3://lab/killed/{name}"
    process = started(port, tmp_path / "disk", "run", *SETTINGS, "--out", address)
    while process.poll() is None and not until(names(port, f"lab/killed/{name}")):
        time.sleep(0.02)
    process.kill()
    process.communicate()
    before = contents(port, f"lab/killed/{name}")
    assert [*(tmp_path / "disk").glob("raysim-*")] != []  # its working copy
    code, _, _ = raysim(port, tmp_path / "disk", "resume", "s3://lab/killed/nothing")
    assert code == 2
    assert [*(tmp_path / "disk").glob("raysim-*")] == []  # which whoever used a store next has removed
    code, said, complained = raysim(port, tmp_path / "empty", "run", *SETTINGS, "--out", address, "--resume")
    assert code == 0, complained
    return before, said, contents(port, f"lab/killed/{name}")


def has_round(t: int):
    return lambda names: f"checkpoints/round-{t:05d}.json" in names


def test_killed_after_a_checkpoint_it_goes_on_from_an_empty_disk(port, expected, tmp_path):
    before, said, after = kill_and_resume(port, tmp_path, "once", has_round(2))
    assert "summary.json" not in before
    assert "going on after round" in said
    assert hashes(after["summary.json"]) == expected[0]
    assert not any(".lease" in name for name in after)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "until"),
    [
        ("lease", lambda names: any(".lease" in name for name in names)),
        ("config", lambda names: "config.json" in names),
        ("files", lambda names: "checkpoints/server-00001.safetensors" in names),
        ("images", lambda names: any("shared-hfmds" in name for name in names)),
        ("end", lambda names: "model.safetensors" in names),
    ],
)
def test_killed_at_five_points(port, expected, tmp_path, name, until):
    _, _, after = kill_and_resume(port, tmp_path, name, until)
    assert hashes(after["summary.json"]) == expected[0]


# -- faults ------------------------------------------------------------------------------------------------------------


def one_line(complained: str, address: str) -> str:
    lines = [line for line in complained.splitlines() if line.startswith("raysim: ")]
    assert len(lines) == 1, complained
    assert lines[0].startswith(f"raysim: --out {address}: ")
    assert "Traceback" not in complained
    assert SECRET not in complained
    return lines[0]


def test_a_store_that_is_not_there_is_one_line_before_anything_starts(tmp_path):
    proxy = Proxy(1, "deny")
    proxy.close()
    code, said, complained = raysim(proxy.own_port, tmp_path, "run", *SETTINGS, "--out", "s3://lab/none/run")
    assert code == 1
    assert "check the address, the bucket and the credentials" in one_line(complained, "s3://lab/none/run")
    assert "round 1" not in said


def test_a_bucket_that_is_not_there(port, tmp_path):
    code, said, complained = raysim(port, tmp_path, "run", *SETTINGS, "--out", "s3://no-such-bucket/run")
    assert code == 1
    one_line(complained, "s3://no-such-bucket/run")
    assert "round 1" not in said


@pytest.mark.parametrize(("how", "says"), [("deny", "ACCESS_DENIED"), ("cut", ""), ("slow", "")])
def test_a_store_that_takes_nothing_is_one_line_before_the_first_round(port, here, how, says, monkeypatch):
    monkeypatch.setattr(remote, "REQUEST_SECONDS", 1.0)
    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    proxy = Proxy(port, how)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.own_port}")
    mirror = Mirror("s3://lab/faults/run")
    with pytest.raises(RaysimError, match=r"^--out s3://lab/faults/run: ") as caught, mirror.held():
        pytest.fail("it has a lease")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 1
    proxy.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["deny", "cut"])
def test_a_store_that_fails_later_ends_the_run_and_it_goes_on_when_the_store_is_back(port, expected, tmp_path, how):
    address = f"s3://lab/later-{how}/run"
    proxy = Proxy(port, how, good=20)
    code, said, complained = raysim(proxy.own_port, tmp_path / "disk", "run", *SETTINGS, "--out", address)
    proxy.close()
    assert code == 1
    line = one_line(complained, address)
    (copy,) = (tmp_path / "disk").glob("raysim-*/run")
    assert line.endswith(f"; its working copy is {copy}, until the next run in a store removes it")
    assert "round 1" in said
    assert "summary.json" not in contents(port, f"lab/later-{how}/run")
    # The lease of the one that failed is left, as that of a process of this machine that is gone.
    code, said, complained = raysim(port, tmp_path / "empty", "resume", address)
    assert code == 0, complained
    assert hashes(contents(port, f"lab/later-{how}/run")["summary.json"]) == expected[0]


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("ftp://host/run", "unknown kind of store; there are s3://, gs://"),
        ("s3://bucket", "give a bucket and a path in it"),
        (f"s3://{KEY}:{SECRET}@bucket/run", "leave credentials out of the address"),
        (f"s3://bucket/run?access_key={KEY}", "unknown option 'access_key' after the question mark; remove it"),
    ],
)
def test_wrong_addresses_are_one_line_without_what_is_secret(address, says):
    with pytest.raises(InputError) as caught:
        Mirror(address)
    assert says in str(caught.value)
    assert KEY not in str(caught.value)
    assert SECRET not in str(caught.value)


def test_an_endpoint_with_credentials_is_refused_without_them(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{KEY}:{SECRET}@127.0.0.1")
    with pytest.raises(InputError, match=r"^AWS_ENDPOINT_URL: leave credentials out of it; [^@]*$") as caught:
        Mirror("s3://lab/run")
    assert SECRET not in str(caught.value)


def test_a_store_that_cannot_be_read_is_said_of_where_it_was_given(here, tmp_path, monkeypatch, capsys):
    flags = ["--in-process", "--model", "mlp", "--clients", "4", "--rounds", "1", "--train-size", "100"]
    start = [*flags, "--out", str(tmp_path / "run"), "--start-from", "s3://lab/nothing/there"]
    assert main(["run", *start]) == 2
    assert capsys.readouterr().err.startswith(
        "raysim: --start-from: there is no 's3://lab/nothing/there/model.safetensors'; "
    )
    proxy = Proxy(1, "deny")
    proxy.close()
    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.own_port}")
    for words, where in ((["run", *start], "--start-from"), (["resume", "s3://lab/nothing/there"], "resume")):
        assert main(words) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"raysim: {where} s3://lab/nothing/there: ")
        assert line.endswith("check the address, the bucket and the credentials in the environment, then try again")


def test_a_secret_in_what_a_store_says_is_left_out(here):
    assert remote._without_secrets(f"key {KEY}, secret {SECRET}") == "key …, secret …"


# -- the mirror --------------------------------------------------------------------------------------------------------


def test_what_is_whole_comes_last_and_goes_first(here):
    mirror, order = Mirror("s3://lab/order/run"), []
    real_write, real_remove = mirror._write, mirror._remove
    mirror._write = lambda name, stamp: (order.append(f"+{name}"), real_write(name, stamp))
    mirror._remove = lambda name: (order.append(f"-{name}"), real_remove(name))
    (mirror.folder / "checkpoints").mkdir()
    for name in ("checkpoints/round-00001.json", "checkpoints/server-00001.safetensors", "summary.json", "zebra.png"):
        (mirror.folder / name).write_text(name)
    (mirror.folder / ".report.html.tmp").write_text("half")
    (mirror.folder / "metrics.jsonl").write_text('{"round": 1}\n{"rou')
    mirror.sync()
    assert order[-2:] == ["+checkpoints/round-00001.json", "+summary.json"]
    assert len(order) == 5
    found = contents(here, "lab/order/run")
    assert found["metrics.jsonl"] == b'{"round": 1}\n'
    assert not any("tmp" in name for name in found)
    order.clear()
    mirror.sync()
    assert order == []  # nothing has changed
    for path in (mirror.folder / "checkpoints").iterdir():
        path.unlink()
    (mirror.folder / "summary.json").unlink()
    (mirror.folder / "zebra.png").write_text("again")
    mirror.sync()
    assert order == [
        "-summary.json", "+zebra.png", "-checkpoints/round-00001.json", "-checkpoints/server-00001.safetensors",
    ]  # fmt: skip
    again = Mirror("s3://lab/order/run")
    again.fetch()
    assert {path.name for path in again.folder.iterdir()} == {"metrics.jsonl", "zebra.png"}
    for each in (mirror, again):
        each.discard()
    assert not mirror.folder.exists()


def test_a_name_that_leads_out_of_the_folder_is_refused(here):
    with open_store(here).open_output_stream("lab/odd/run/deep/er/file") as file:
        file.write(b"x")
    mirror = Mirror("s3://lab/odd/run")
    with pytest.raises(InputError, match="raysim did not write its 'deep/er/file'; choose another"):
        mirror.fetch()
    mirror.discard()
    assert not remote._is_plain("../x")
    assert remote._is_plain("checkpoints/round-00001.json")


# -- the lease ---------------------------------------------------------------------------------------------------------


def lease(port, name):
    return remote_lease.RemoteLease(open_store(port), f"lab/{name}", f"s3://lab/{name}")


def test_one_driver_at_a_time(port, monkeypatch):
    monkeypatch.setattr(remote_lease, "TRIES", 1)
    first, second = lease(port, "one"), lease(port, "one")
    first.take()
    with pytest.raises(InputError, match=rf"^s3://lab/one is in use by process {os.getpid()} on "):
        second.take()
    assert len(contents(port, "lab/one")) == 1
    first.check()
    first.release()
    second = lease(port, "one")
    second.take()
    with pytest.raises(RaysimError, match="was taken over by another driver"):
        first.check()
    second.release()


@pytest.mark.parametrize(("place", "stale", "taken"), [("", 0.0, True), ("", 300.0, False), (None, 300.0, True)])
def test_the_lease_of_a_dead_driver_is_taken_over(port, monkeypatch, place, stale, taken):
    """Of a process of this machine at once, of another machine after some time without a sign of life."""
    monkeypatch.setattr(remote_lease, "TRIES", 1)
    monkeypatch.setattr(remote_lease, "STALE_SECONDS", stale)
    dead, name = lease(port, "dead"), "dead"
    owner = json.loads(dead.content) | {"pid": 2**22 - 1, "started": "1"} | ({} if place is None else {"place": place})
    assert Owner.read(json.dumps(owner).encode()).is_alive() is (False if place is None else None)
    dead.content = json.dumps(owner).encode()
    dead._write()
    if stale == 0:
        time.sleep(1.1)  # the store's times are in seconds
    mine = lease(port, name)
    if taken:
        mine.take()
        assert [*contents(port, "lab/dead")] == [mine.path.rpartition("/")[2]]
        mine.release()
    else:
        with pytest.raises(InputError, match="is in use by process"):
            mine.take()
    with suppress(FileNotFoundError):
        open_store(port).delete_file(dead.path)


def test_temporary_folders_are_where_they_should_be(here):
    mirror = Mirror("s3://lab/some/where")
    assert mirror.folder.name == "where"
    assert mirror.folder.is_relative_to(tempfile.gettempdir())
    mirror.discard()
