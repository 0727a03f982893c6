"""What the documentation says is so."""

import re
from pathlib import Path

import pytest

from raysim.cli import main

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))


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


@pytest.mark.parametrize("path", [*DOCS, ROOT / "README.md"], ids=lambda path: path.name)
def test_links_and_flags_exist(path, capsys):
    text = path.read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (path.parent / target).exists(), target
    main(["run", "--help"])
    known = set(re.findall(r"--[\w.-]+", capsys.readouterr().out))
    commands = re.findall(r"(?:python -m raysim|raysim) run ([^`\n]*)", text)
    for flag in re.findall(r"--[a-z][\w.-]*", " ".join(commands)):
        assert flag in known | {"--help"}, flag
