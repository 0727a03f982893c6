"""torchvision works here, with or without its compiled operators, and is imported in one place only."""

import re
from pathlib import Path

import pytest

from raysim.data import torchvision_import as compat

PACKAGE = Path(compat.__file__).parents[1]


def test_a_resnet_runs_forward():
    torch = pytest.importorskip("torch")
    model = compat.import_torchvision().models.resnet18(num_classes=10).eval()
    with torch.inference_mode():
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert compat.import_torchvision() is compat.import_torchvision()


def test_another_import_error_is_not_hidden(monkeypatch):
    def fail(name):
        raise RuntimeError("something else is broken")

    monkeypatch.setattr(compat.importlib, "import_module", fail)
    with pytest.raises(RuntimeError, match="something else"):
        compat.import_torchvision()


def test_nobody_else_imports_torchvision():
    direct = re.compile(r"^\s*(import|from)\s+torchvision\b|import_module\(.torchvision", re.MULTILINE)
    offenders = [path for path in PACKAGE.rglob("*.py") if direct.search(path.read_text())]
    assert offenders == [PACKAGE / "data" / "torchvision_import.py"]
