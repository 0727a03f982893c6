"""Run directories with damages drawn by chance: every command ends in order, with at most one line, and only there.

`make fuzz` tries thousands.
"""

import contextlib
import io
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from raysim.cli import main
from tests.storage import made

EVENTS = [
    {"time": 1.5, "event": "note", "text": "a note"},
    {"time": 2.5, "event": "actor_lost", "reason": "killed", "clients": 2, "round": 1},
]
COMMANDS = {
    ("finished", "report"): 3, ("finished", "resume"): 2, ("interrupted", "report"): 3, ("interrupted", "resume"): 2,
}  # and how often each is tried, as the last one takes a second  # fmt: skip
VALUES = (None, True, -1, 0, 3, 0.5, 1e300, "x", "", [], {}, [1], {"a": 1})


@dataclass(frozen=True)
class Mutation:
    """One damage, given by a seed: to a file of one of the runs, before one of the commands."""

    number: int
    seed: int

    @property
    def draw(self) -> random.Random:
        return random.Random(f"{self.seed}-{self.number}")

    def apply(self, folder: Path) -> tuple[list[str], str]:
        """Make a damaged run in this folder; returns the command that is tried there, and the damage in words."""
        draw = self.draw
        (base, command) = draw.choices(list(COMMANDS), COMMANDS.values())[0]
        make_run(base, folder)
        path = draw.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
        kind = draw.choice(sorted(KINDS))
        KINDS[kind](path, draw)
        words = ["report", str(folder)] if command == "report" else ["resume", str(folder), "--in-process"]
        return words, f"{command} of {base} with {path.relative_to(folder)}: {kind}"


def mutations(count: int, seed: int) -> Iterator[Mutation]:
    """So many damages; the same for the same seed."""
    return (Mutation(i, seed) for i in range(count))


def make_run(base: str, folder: Path) -> None:
    """Copy a run, with events and a map of features."""
    made.copied(made.finished() if base == "finished" else made.interrupted(), folder)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    if base == "finished":
        (folder / "features.json").write_text('{"real": {"x": [0.5, -1.0], "y": [1.0, 2.0], "label": [3, 7]}}\n')


# -- damages -----------------------------------------------------------------------------------------------------------


def truncate(path: Path, draw: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(len(content))])


def flip(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 1, 2, 8])):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def become_directory(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()
    if draw.random() < 0.5:
        (path / "precious").touch()


def become_other_file(path: Path, draw: random.Random) -> None:
    others = sorted(other for other in path.parent.iterdir() if other.is_file() and other != path)
    path.write_bytes(draw.choice(others).read_bytes())


def duplicate_line(path: Path, draw: random.Random) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines))
    path.write_bytes(b"".join(lines))


def change_value(path: Path, draw: random.Random) -> None:
    """Somewhere in its JSON, if it is JSON, there is another value, or a key is gone."""
    lines = path.read_bytes().splitlines(keepends=True)
    with contextlib.suppress(ValueError):
        if path.suffix == ".jsonl":
            i = draw.randrange(len(lines))
            lines[i] = json.dumps(changed(json.loads(lines[i]), draw)).encode() + b"\n"
        else:
            lines = [json.dumps(changed(json.loads(path.read_bytes()), draw)).encode()]
    path.write_bytes(b"".join(lines))


def changed(tree: object, draw: random.Random) -> object:
    if not isinstance(tree, dict | list) or not tree or draw.random() < 0.1:
        return draw.choice(VALUES)
    key = draw.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
    if draw.random() < 0.1:
        del tree[key]
    else:
        tree[key] = changed(tree[key], draw)
    return tree


KINDS: dict[str, Callable[[Path, random.Random], object]] = {
    "truncated": truncate,
    "flipped bits": flip,
    "a list": lambda path, draw: path.write_text("[1, 2]\n"),
    "an empty object": lambda path, draw: path.write_text("{}\n"),
    "empty": lambda path, draw: path.write_bytes(b""),
    "binary": lambda path, draw: path.write_bytes(draw.randbytes(200) + b"\n"),
    "deep": lambda path, draw: path.write_text("[" * 100_000 + "\n"),
    "a directory": become_directory,
    "another file": become_other_file,
    "deleted": lambda path, draw: path.unlink(),
    "a line twice": duplicate_line,
    "another value": change_value,
}


# -- what must hold ----------------------------------------------------------------------------------------------------


# Caches of libraries, and the picture of labels: a run that fails does not wait for it for long.
ELSEWHERE = ("__pycache__", "matplotlib", "torchinductor", "/.config", "/.cache", "labels.png")


class Watch:
    """Notes every file that is opened to be written, removed or renamed outside a folder."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.outside: list[str] = []
        sys.addaudithook(self.hear)

    def hear(self, event: str, arguments: tuple) -> None:
        if self.folder is None or event not in ("open", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link"):
            return
        if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            return
        for path in arguments[: 2 if event in ("os.rename", "os.link") else 1]:
            text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else "/dev/"
            if not text.startswith((str(self.folder), "/dev/")) and not any(word in text for word in ELSEWHERE):
                self.outside.append(f"{event} {text}")


WATCH: list[Watch] = []  # a hook cannot be removed, so there is one


def tried(mutation: Mutation, folder: Path) -> tuple[int, str]:
    """The exit code of a command on a damaged run, and what was wrong with how it ended; empty if nothing."""
    words, damage = mutation.apply(folder)
    if not WATCH:
        WATCH.append(Watch())
    said, errors = io.StringIO(), io.StringIO()
    WATCH[0].folder, WATCH[0].outside = folder, []
    wrong = []
    code = -1
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
            code = main(words)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        wrong.append(f"raised {type(error).__name__}: {error}")
    finally:
        WATCH[0].folder = None
    lines = errors.getvalue().splitlines()
    if code not in (0, 1, 2) and not wrong:
        wrong.append(f"exit code {code}")
    if len(lines) > 1 or any(not line.startswith("raysim: ") for line in lines) or (code > 0) != bool(lines):
        wrong.append(f"said {lines}")
    if code == 1 and str(folder) not in "".join(lines):
        wrong.append(f"names no file: {lines}")
    if "Traceback" in said.getvalue() + errors.getvalue():
        wrong.append("traceback")
    if list(folder.rglob(".lease*")):
        wrong.append("left a lease")
    wrong += WATCH[0].outside
    return code, f"{mutation} ({damage}): {'; '.join(wrong)}" if wrong else ""


@pytest.mark.parametrize("mutation", list(mutations(30, seed=0)), ids=lambda mutation: str(mutation.number))
def test_a_damaged_run(tmp_path, mutation):
    assert tried(mutation, tmp_path / "run")[1] == ""


def fuzz(count: int, seed: int, say: Callable[[str], None]) -> int:
    """Try so many, name those that end otherwise than they should, and return how many these are."""
    codes: Counter[int] = Counter()
    failed = 0
    for i, mutation in enumerate(mutations(count, seed)):
        if i and i % 100 == 0:
            say(f"{i} damaged runs, {failed} failures")
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a picture may be late
            code, wrong = tried(mutation, Path(folder) / "run")
        codes[code] += 1
        if wrong:
            failed += 1
            say(wrong)
    say(f"{count} damaged runs: exit codes {dict(sorted(codes.items()))}, {failed} not as they should")
    return failed
