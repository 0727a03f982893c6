"""A run that diverges ends with one line and exit code 1: no setting was wrong, and there is nothing to debug."""

import pytest

from raysim import methods
from raysim.cli import main
from raysim.settings import flag
from tests.methods.tiny import settings_of

QUICK = ("fedavg", "feddpgan", "hfmds")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in methods.names()]
)
def test_it_ends_in_one_line(tmp_path, capsys, name):
    settings = settings_of(name, dataset="shapes", train_size=120, test_size=50, lr=1000, out=tmp_path / "run")
    words = [f"{flag(key)}={value}" for key, value in settings.items()]
    assert main(["run", "--in-process", *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("raysim: client 0 failed in round 1")
    assert line.endswith("; a lower --lr usually helps")
