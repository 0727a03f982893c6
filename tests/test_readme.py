"""What the README shows is run."""

import re
import sys
from pathlib import Path

from raysim.config import from_command_line, load_layers, resolve
from tests.simulate import blobs, simulate

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_example_method_runs_composed_with_another_and_learns(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(code.strip().splitlines()) < 30
    (tmp_path / "my_lab").mkdir()
    (tmp_path / "my_lab" / "calibrated.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        settings = {"partition": "classes", "classes_per_client": 2, "rounds": 4, "active": 5}
        result = simulate(blobs(), method="my_lab.calibrated+fedprox", **{"calibrated.tau": 0.8}, **settings)
        assert result.history[0]["terms"].keys() == {"fedprox"}
        assert result.history[-1]["terms"].keys() == {"calibrated", "fedprox"}
        assert result.history[-1]["accuracy"] > 0.5  # five classes
    finally:
        for name in [name for name in sys.modules if name.startswith("my_lab")]:
            del sys.modules[name]


def test_every_flag_the_readme_shows_exists():
    commands = re.findall(r"^ +raysim run (.*?)(?:#.*)?$", README, re.MULTILINE)
    assert len(commands) >= 4
    for words in commands:
        if "--help" not in words:
            resolve(load_layers(from_command_line(words.split()), {}))
