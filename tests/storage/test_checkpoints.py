"""Checkpoints come back bit for bit or not at all: whatever was cut, flipped or missing, wherever a write ended."""

import errno
import hashlib
import io
import os
import shutil

import numpy as np
import pytest

from raysim.data.synthetic_tables import make_table, table_digest
from raysim.errors import RaysimError
from raysim.state import pack
from raysim.storage import checkpoint_writer, files
from raysim.storage.checkpoint_writer import CheckpointWriter
from raysim.storage.checkpoints import Checkpoints

IDENTITY = {"settings": {"seed": 1}, "data": "abc"}


def tree(t: int) -> dict:
    weights = [np.arange(6, dtype=np.float32) + t]
    return {"weights": weights, "state": {"fedpa": {"step": np.array(3.0 * t), "n": 4, "none": None, "l": [1]}}}


def table(t: int):
    images = np.full((3, 1, 4, 4), t, dtype=np.float32)
    return make_table(images, np.arange(3), np.zeros(3, np.int64), np.full(3, t))


def shared(t: int) -> dict:
    """What is given to a save: the dataset that was made in round t."""
    return {"hfmds": (t, table_digest(table(t)), table(t))}


def file_of(t: int) -> str:
    return f"shared-hfmds-{t:05d}-{table_digest(table(t))[:16]}.arrow"


@pytest.fixture
def saved(tmp_path):
    """Three rounds: client 1 changes in the first, 2 in the second; the dataset is of the second."""
    checkpoints = Checkpoints(tmp_path / "c", IDENTITY)
    checkpoints.save(1, tree(1), {1: {"p": {"w": np.ones(2)}}}, {})
    checkpoints.save(2, tree(2), {2: {"p": {"w": np.zeros((0, 3))}}}, shared(2))
    checkpoints.save(3, tree(3), {}, shared(2))
    return tmp_path / "c"


def bits(value) -> tuple:
    """A tree, to be compared bit for bit."""
    tensors: dict = {}
    packed = pack(value, tensors, "x")
    return packed, {name: (array.dtype, array.shape, array.tobytes()) for name, array in tensors.items()}


def content(found):
    """All of a checkpoint, to be compared bit for bit."""
    if found is None:
        return None
    states = {str(client): state for batch in found.states for client, state in batch}
    shared = {part: (made, table_digest(held)) for part, (made, held) in found.shared.items()}
    return found.round, bits(found.server), bits(states), shared


def test_everything_comes_back_and_what_did_not_change_is_not_written_again(saved):
    names = sorted(path.name for path in saved.iterdir())
    assert names == [
        "round-00002.json", "round-00003.json", "server-00002.safetensors", "server-00003.safetensors",
        file_of(2), "states-00001.safetensors", "states-00002.safetensors",
    ]  # fmt: skip
    found = Checkpoints(saved, IDENTITY).load()
    assert found.round == 3
    assert bits(found.server) == bits(tree(3))
    states = dict(pair for batch in found.states for pair in batch)
    assert np.array_equal(states[1]["p"]["w"], np.ones(2))
    assert states[2]["p"]["w"].shape == (0, 3)
    made, held = found.shared["hfmds"]
    assert made == 2
    assert table_digest(held) == table_digest(table(2))


def test_a_run_goes_on_saving_from_what_it_loaded(saved):
    checkpoints = Checkpoints(saved, IDENTITY)
    checkpoints.load()
    checkpoints.save(4, tree(4), {1: {"p": {"w": np.full(2, 7.0)}}}, shared(2))
    found = Checkpoints(saved, IDENTITY).load()
    states = dict(pair for batch in found.states for pair in batch)
    assert found.round == 4
    assert np.array_equal(states[1]["p"]["w"], np.full(2, 7.0))
    assert 2 in states


def test_two_datasets_of_one_round_are_two_files(saved):
    checkpoints = Checkpoints(saved, IDENTITY)
    checkpoints.load()
    for made in (5, 6):
        begun = {"passes": {"hfmds": made}}
        checkpoints.save(4, tree(4), {}, {"hfmds": (5, table_digest(table(made)), table(made))}, begun=begun)
        _, held = Checkpoints(saved, IDENTITY).load().shared["hfmds"]
        assert table_digest(held) == table_digest(table(made))


def test_a_dataset_that_an_older_raysim_named_by_its_round_alone_is_read(saved):
    old = "shared-hfmds-00002.arrow"
    path = saved / "round-00003.json"
    _, _, text = path.read_text().partition("\n")
    text = text.strip().replace(file_of(2), old)
    path.write_text(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}\n")
    (saved / file_of(2)).rename(saved / old)
    checkpoints = Checkpoints(saved, IDENTITY)
    made, held = checkpoints.load().shared["hfmds"]
    assert (made, table_digest(held)) == (2, table_digest(table(2)))
    checkpoints.save(4, tree(4), {}, shared(2))
    assert Checkpoints(saved, IDENTITY).load(pytest.fail).round == 4


class Store:
    """Objects by reference, as a runner has them."""

    def get(self, reference):
        return reference


def test_a_writer_digests_a_dataset_once(tmp_path, monkeypatch):
    digested = []
    monkeypatch.setattr(checkpoint_writer, "table_digest", lambda table: digested.append(table) or table_digest(table))
    writer = CheckpointWriter(Checkpoints(tmp_path / "c", IDENTITY), Store(), pytest.fail)
    for t, made in ((1, table(1)), (2, table(1)), (3, table(3))):
        writer.save(t, (tree(t), {"hfmds": 1}), {}, {"hfmds": made})
        writer.wait()
    assert len(digested) == 2
    _, held = Checkpoints(tmp_path / "c", IDENTITY).load().shared["hfmds"]
    assert table_digest(held) == table_digest(table(3))


# -- damage ------------------------------------------------------------------------------------------------------------

# What is used where a file is damaged: the one before, nothing where both need it, and the last where only an older
# one does.
USED = {
    "round-00003.json": 2, "server-00003.safetensors": 2, "states-00001.safetensors": None,
    "states-00002.safetensors": None, file_of(2): None, "round-00002.json": 3,
    "server-00002.safetensors": 3,
}  # fmt: skip


def damages(whole: bytes, name: str):
    """Cut short, a byte changed, and gone (None)."""
    size, draw = len(whole), np.random.default_rng(list(name.encode()))
    for length in (0, 1, size // 3, size // 2, size - 1):
        yield whole[:length]
    for at in (0, size - 1, *draw.integers(size, size=10).tolist()):
        yield whole[:at] + bytes([whole[at] ^ int(draw.integers(1, 256))]) + whole[at + 1 :]
    yield None


@pytest.mark.parametrize("name", USED)
def test_a_damaged_file_is_named_and_the_checkpoint_before_is_used(saved, name):
    path, expected = saved / name, USED[name]
    before = {3: content(Checkpoints(saved, IDENTITY).load()), None: None}
    (saved / "round-00003.json").rename(saved / "aside")
    before[2] = content(Checkpoints(saved, IDENTITY).load())
    (saved / "aside").rename(saved / "round-00003.json")
    whole = path.read_bytes()
    for damaged in damages(whole, name):
        path.write_bytes(damaged or b"")
        if damaged is None:
            path.unlink()
        refused = []
        assert content(Checkpoints(saved, IDENTITY).load(refused.append)) == before[expected]
        if damaged is None and name.startswith("round-"):
            assert not refused  # without its manifest there is nothing to refuse
        else:
            assert len(refused) == {3: 0, 2: 1, None: 2}[expected]
            ends = ["using the one before it", "there is none before it, so the run starts again at round 1"]
            assert all(map(str.endswith, refused, ends))
            assert all(name in reason for reason in refused)


def test_every_single_byte_of_a_manifest_counts(saved):
    whole = (saved / "round-00003.json").read_bytes()
    for i in (*range(0, len(whole), 7), len(whole) - 1):
        (saved / "round-00003.json").write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        assert Checkpoints(saved, IDENTITY).load().round == 2


@pytest.mark.parametrize("name", ["round-0000*.json", "server-0000*.safetensors"])
def test_a_run_that_starts_over_beside_damaged_checkpoints_keeps_its_own(saved, name):
    """They are of later rounds than the first it saves; nothing of them may get into it."""
    for path in saved.glob(name):
        path.write_bytes(path.read_bytes()[:-5])
    checkpoints = Checkpoints(saved, IDENTITY)
    assert checkpoints.load() is None
    checkpoints.save(1, tree(1), {}, {})
    found = Checkpoints(saved, IDENTITY).load()
    assert (found.round, found.states, found.shared) == (1, [], {})
    for t in (2, 3, 4):
        checkpoints.save(t, tree(t), {}, {})
    manifests = sorted(path.name for path in saved.glob("round-*.json"))
    assert manifests == ["round-00003.json", "round-00004.json"]
    if name.startswith("server"):  # the damaged manifests did not say what was theirs
        assert sorted(path.name for path in saved.iterdir() if path.name not in manifests) == [
            "server-00003.safetensors", "server-00004.safetensors",
        ]  # fmt: skip


def test_a_loaded_run_forgets_what_it_knew(saved):
    """A server is lost, and its checkpoints are damaged: the run starts over, with the same object."""
    checkpoints = Checkpoints(saved, IDENTITY)
    assert checkpoints.load().round == 3
    (saved / "states-00001.safetensors").unlink()
    assert checkpoints.load() is None
    checkpoints.save(1, tree(1), {}, {})
    assert Checkpoints(saved, IDENTITY).load().states == []


def test_more_rounds_than_the_names_have_digits_for(tmp_path):
    checkpoints = Checkpoints(tmp_path / "c", IDENTITY)
    for t in (99_999, 100_000):
        checkpoints.save(t, tree(t), {}, {})
    assert Checkpoints(tmp_path / "c", IDENTITY).load().round == 100_000


# -- a write that ends in the middle -----------------------------------------------------------------------------------


class Steps:
    """Counts what a save does to the disk, and calls `fail` in the n-th step: within a write after half of it."""

    def __init__(self, monkeypatch, n: int = 0, fail=None):
        self.n, self.fail, self.taken = n, fail, []
        for name in ("mkdir", "open", "fsync", "replace", "unlink"):
            monkeypatch.setattr(os, name, self.counted(name, getattr(os, name)))
        monkeypatch.setattr(files, "open", self.open, raising=False)

    def step(self, kind: str, subject) -> None:
        name = os.readlink(f"/proc/self/fd/{subject}") if isinstance(subject, int) else str(subject)
        self.taken.append((kind, os.path.basename(name)))
        if len(self.taken) == self.n:
            self.fail()

    def counted(self, name: str, function):
        def call(subject, *arguments, **options):
            self.step(name, subject)
            return function(subject, *arguments, **options)

        return call

    def open(self, path, mode: str):
        self.step("create", path)
        return Halting(io.FileIO(path, mode), lambda: self.step("write", path))


class Halting(io.BufferedWriter):
    """A file that calls `halfway` in the middle of every write."""

    def __init__(self, file: io.FileIO, halfway):
        super().__init__(file)
        self.halfway = halfway

    def write(self, content) -> int:
        content = memoryview(content).cast("B")
        half = len(content) // 2
        written = super().write(content[:half])
        self.flush()
        self.halfway()
        return written + super().write(content[half:])


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def save_next(checkpoints: Checkpoints) -> None:
    """A round with everything in it: a state, a new dataset, and older files to remove."""
    checkpoints.save(4, tree(4), {1: {"p": {"w": np.full(2, 7.0)}}}, shared(4))


def killed_at(n: int, folder, monkeypatch) -> bool:
    """Whether a process that loads and saves was ended in the n-th step, as by SIGKILL: nothing is cleaned up."""
    if not (child := os.fork()):
        code = 2  # something else went wrong
        try:
            checkpoints = Checkpoints(folder, IDENTITY)
            checkpoints.load()
            Steps(monkeypatch, n, lambda: os._exit(9))
            save_next(checkpoints)
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


def refused_at(n: int, folder, _) -> bool:
    """Whether the disk was full in the n-th step. The same object can save once there is space again."""
    checkpoints = Checkpoints(folder, IDENTITY)
    before = content(checkpoints.load())
    with pytest.MonkeyPatch.context() as monkeypatch:
        steps = Steps(monkeypatch, n, full)
        try:
            save_next(checkpoints)
        except RaysimError as error:
            assert "cannot be written: No space left on device; free space, then" in str(error)  # noqa: PT017
    if len(steps.taken) < n:
        return False
    assert not list(folder.glob(".*"))
    if ("replace", ".round-00004.json.tmp") not in steps.taken[: n - 1]:
        assert content(Checkpoints(folder, IDENTITY).load()) == before
    save_next(checkpoints)
    return True


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("ended", [killed_at, refused_at])
def test_a_save_that_ends_in_any_step_leaves_the_old_checkpoint_or_the_new(saved, tmp_path, monkeypatch, ended, first):
    def fresh():
        shutil.rmtree(tmp_path / "try", ignore_errors=True)
        (tmp_path / "try").mkdir()
        if not first:
            shutil.copytree(saved, tmp_path / "try" / "c")
        return tmp_path / "try" / "c"

    folder = fresh()
    old = content(Checkpoints(folder, IDENTITY).load())
    checkpoints = Checkpoints(folder, IDENTITY)
    checkpoints.load()
    save_next(checkpoints)
    new, files = content(Checkpoints(folder, IDENTITY).load()), {path.name for path in folder.iterdir()}
    seen, n = [], 1
    while ended(n, fresh(), monkeypatch):
        refused = []
        checkpoints = Checkpoints(folder, IDENTITY)
        seen.append(content(checkpoints.load(refused.append)))
        assert seen[-1] in (old, new)
        assert not refused
        save_next(checkpoints)
        assert content(Checkpoints(folder, IDENTITY).load()) == new
        assert {path.name for path in folder.iterdir()} <= files
        n += 1
    assert n > 20  # steps
    if ended is killed_at:  # once the new one is there, it stays
        assert seen == sorted(seen, key=lambda found: found == new)
        assert {str(found) for found in seen} == {str(old), str(new)}


def test_files_are_on_the_disk_before_what_counts_on_them(saved, monkeypatch):
    """In case the power fails: content before its name, names before the manifest, the manifest before the tidying."""
    checkpoints = Checkpoints(saved, IDENTITY)
    checkpoints.load()
    steps = Steps(monkeypatch)
    save_next(checkpoints)
    taken = [step for step in steps.taken if step[0] in ("fsync", "replace", "unlink")]
    written = ["server-00004.safetensors", "states-00004.safetensors", file_of(4)]
    renamed = [[("fsync", f".{name}.tmp"), ("replace", f".{name}.tmp")] for name in [*written, "round-00004.json"]]
    folder = ("fsync", "c")
    assert taken[:10] == [*renamed[0], *renamed[1], *renamed[2], folder, *renamed[3], folder]
    assert {kind for kind, _ in taken[10:]} == {"unlink"}
    assert taken[-1] == ("unlink", "round-00002.json")  # until then it says which files are ours


def test_leftovers_of_a_killed_write_do_no_harm_and_go(saved):
    (saved / ".server-00004.safetensors.tmp").write_bytes(b"half")
    (saved / "server-00004.safetensors").write_bytes(b"whole, but its manifest was never written")
    checkpoints = Checkpoints(saved, IDENTITY)
    assert checkpoints.load().round == 3
    checkpoints.save(4, tree(4), {}, shared(2))
    assert Checkpoints(saved, IDENTITY).load().round == 4
    assert not list(saved.glob(".*"))


def test_another_runs_checkpoint_is_refused_by_name(saved):
    with pytest.raises(RaysimError, match=r"round-0000\d.json was made with another data"):
        Checkpoints(saved, IDENTITY | {"data": "other"}).load()
