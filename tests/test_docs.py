"""What the documentation says is so."""

import importlib.util
import re
from pathlib import Path

import pytest

from raysim.cli import main

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "cluster", "docs", "examples", "jobs", "raysim", "tests")
PAGES = [*sorted(ROOT.glob("*.md")), *(page for name in FOLDERS for page in sorted((ROOT / name).rglob("*.md")))]
EXAMPLES = {"raysim/methods/calibrated.py"}  # files that a reader is told to write; so is any NAME

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def test_the_settings_are_those_of_the_program(capsys):
    assert main(["settings"]) == 0
    assert (ROOT / "docs" / "settings.md").read_text() == capsys.readouterr().out, "run `make docs`"


def test_every_message_that_is_explained_is_one_the_program_gives():
    source = "\n".join(path.read_text() for path in (ROOT / "raysim").rglob("*.py"))
    entries = re.findall(r"^\*\*(.*?)\*\*", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE)
    messages = [message for entry in entries for message in re.findall(r"`(.*?)`", entry)]
    assert len(messages) >= 9
    for message in messages:
        assert message in source, message


def heading_anchors(page: Path) -> set[str]:
    """The names by which links reach the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in heading_anchors(file), f"{target}#{anchor}"


@each_page
def test_flags_exist(page, capsys):
    main(["run", "--help"])
    main(["run", "--help", "all"])
    known = set(re.findall(r"--[\w.-]+", capsys.readouterr().out))
    commands = re.findall(r"\braysim run ([^`\n]*)", page.read_text())
    for flag in re.findall(r"--[a-z][\w.-]*", " ".join(commands)):
        assert flag in known | {"--help"}, flag


@each_page
def test_paths_exist(page):
    for path in re.findall(rf"(?<![\w/.-])(?:{'|'.join(FOLDERS)})/[\w./-]*", page.read_text()):
        path = path.rstrip(".")
        assert "NAME" in path or path in EXAMPLES or (ROOT / path).exists(), path


@each_page
def test_modules_and_what_is_in_them_exist(page):
    for name in re.findall(r"`(raysim(?:\.\w+)+)", page.read_text()):
        assert is_importable(name), name


def is_importable(name: str) -> bool:
    """Whether a module has this dotted name, or something in a module."""
    above, _, last = name.rpartition(".")
    try:
        return importlib.util.find_spec(name) is not None or hasattr(importlib.import_module(above), last)
    except ModuleNotFoundError:  # what is above is not a package
        return bool(importlib.util.find_spec(above)) and hasattr(importlib.import_module(above), last)


def test_a_name_that_does_not_exist_is_noticed():
    assert is_importable("raysim.engine.callbacks.Callback")
    assert not is_importable("raysim.engine.callbacks.Nothing")
    assert not is_importable("raysim.nothing")
